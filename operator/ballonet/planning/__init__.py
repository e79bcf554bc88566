"""From a spec to a plan: budget, need, verdict, limits and remedies. Pure."""
