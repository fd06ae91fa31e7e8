"""Run a server as long as the process that started this one lives: `keeper COMMAND …`.

That process holds the other end of stdin. However it ends, its end is closed then.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading


def main(*command: str) -> None:
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=lambda: os._exit(server.wait() or 1), daemon=True).start()
    sys.stdin.buffer.read()
    server.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
