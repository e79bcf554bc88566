"""KV blocks of each sequence, out of an unmodified vLLM.

vLLM loads :func:`ballonet_probe.plugin.register` in each of its processes. In the engine core the
scheduler class is subclassed (:mod:`ballonet_probe.scheduler`), and a thread serves what it holds
(:mod:`ballonet_probe.page`). Whatever goes wrong here ends the probe, never the engine.
"""
