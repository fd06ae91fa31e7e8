"""What spark-submit and the Spark operators start: its arguments are those of `ebbtide`."""

from ebbtide.cli import main

if __name__ == "__main__":
    main()
