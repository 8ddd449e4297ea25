"""`python -m mew_agent` is `mew`."""

from mew_agent.cli.main import main

if __name__ == "__main__":
    main()
