"""`python -m ebbtide` is `ebbtide`."""

from ebbtide.cli import main

if __name__ == "__main__":
    main()
