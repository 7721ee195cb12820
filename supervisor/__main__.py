"""`python -m supervisor` is the command `delivery`."""

from supervisor.cli import main

if __name__ == "__main__":
    main()
