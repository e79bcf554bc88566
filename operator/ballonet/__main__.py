"""``python -m ballonet`` is the same as ``ballonet``."""

from ballonet.cli.main import main

if __name__ == "__main__":
    main()
