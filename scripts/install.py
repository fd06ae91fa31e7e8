"""Install what `make demo` or `make test` needs into .venv.  usage: install.py demo|dev

Only the standard library, and nothing that an old Python cannot parse, because it tells the user
that this Python is too old. Steps: 1 find Python; 2 create .venv; 3 bootstrap uv with pip, if it is
missing; 4 install the pinned packages, with Java if JAVA_HOME names none; 5 link the project;
6 check Java. What is installed already is not installed again, so an interrupted run continues.
"""

import os
import re
import shutil
import subprocess
import sys
import time

VENV = ".venv"
BIN = os.path.join(VENV, "bin")
PYTHON = os.path.join(BIN, "python")
SETS = {"demo": "requirements/spark.txt", "dev": "requirements/dev.txt"}
GOALS = {"demo": "demo", "dev": "test"}
TOOLS, JAVA = "requirements/setup.txt", "requirements/java.txt"
PIP = [PYTHON, "-m", "pip", "--disable-pip-version-check"]
FROM_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "HTTPS_PROXY",
}
"""Settings of pip, which a user may have in pip.conf, and what uv calls them."""
USABLE = "import pip, sys; assert (3, 10) <= sys.version_info[:2] <= (3, 13)"
"""What the Python of .venv has to run: another one may have created it."""
BEAT_SECONDS = 10
"""Through a pipe, a step prints a line so often, so that nobody thinks that it hangs."""


def main():
    """Install the set that is named."""
    wanted = sys.argv[1] if len(sys.argv) == 2 else ""
    if wanted not in SETS:
        sys.exit("usage: install.py demo|dev")
    # 1
    if not (3, 10) <= sys.version_info[:2] <= (3, 13):
        sys.exit(
            f"Ebbtide needs Python 3.10 to 3.13, and {sys.executable} is "
            f"{sys.version.split()[0]}. Type: make PYTHON=python3.12 {GOALS[wanted]}"
        )
    started = time.monotonic()
    # 2
    if not runs(USABLE):
        step("Creating the virtual environment .venv", create_command(), "Python's venv module")
    # 3
    uv = find_uv() or bootstrap_uv()
    # 4
    needed = [SETS[wanted], TOOLS] + ([] if os.environ.get("JAVA_HOME") else [JAVA])
    names = {name for file in needed for name in pinned(file)}
    step(f"Installing {len(names)} packages", install_command(uv, needed), "the package index", uv)
    # 5
    step("", link_command(uv), "this folder", uv)
    # 6: one that is there may be too old or too new
    if JAVA not in needed and not runs("from ebbtide.runtime import java; java.find_java()"):
        step("Installing Java", install_command(uv, [JAVA]), "the package index", uv)
    print(f"Installed in {time.monotonic() - started:.0f} s.", flush=True)


def runs(code):
    """Whether the Python of .venv, which a moved folder may lack, runs some code."""
    if not os.path.exists(PYTHON):
        return False
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.run([PYTHON, "-c", code], check=False, **quiet).returncode == 0


def create_command():
    """The command that creates .venv in place of what does not run."""
    clear = ["--clear"] if os.path.isdir(VENV) else []
    return [sys.executable, "-m", "venv", *clear, VENV]


def find_uv():
    """The uv of the environment, or the user's."""
    own = os.path.join(BIN, "uv")
    return own if os.path.exists(own) else shutil.which("uv")


def bootstrap_uv():
    """Install uv, and what builds the project; None if there is no uv for this machine."""
    command = [*PIP, "install", "--quiet", "--require-hashes", "-r", TOOLS]
    step("Installing uv, which installs the rest faster", command, "the package index")
    return find_uv()


def install_command(uv, files):
    """The command that installs pinned files."""
    return [*installer(uv), "--require-hashes", *(word for file in files for word in ("-r", file))]


def link_command(uv):
    """The command that installs the project as it stands here."""
    link = ["--no-deps", "--no-build-isolation", "--editable", "."]
    return [*installer(uv), "--quiet", *link]


def installer(uv):
    """uv, or else pip."""
    if uv:
        return [uv, "pip", "install", "--python", PYTHON, "--no-config"]
    return [*PIP, "install"]


def pinned(file):
    """The names of the packages in a file of pinned ones."""
    with open(file, encoding="utf-8") as lines:
        return [line.split("==")[0] for line in lines if re.match(r"[a-zA-Z0-9_.-]+==", line)]


def uv_environment(listed, environ):
    """The environment for uv: what pip is told (`pip config list`), unless uv is told otherwise."""
    settings = dict(environ)
    for name, value in re.findall(r"^[\w:]+\.([a-z-]+)='(.*)'$", listed, re.MULTILINE):
        if name in FROM_PIP:
            settings.setdefault(FROM_PIP[name], value)
    return settings


def step(title, command, source, uv=None):
    """Run one command and show that it goes on; if it fails, end with one line that says why."""
    environ = dict(os.environ)
    if uv and command[0] == uv:
        listed = subprocess.run([*PIP, "config", "list"], stdout=subprocess.PIPE, check=False)
        environ = uv_environment(listed.stdout.decode(), environ)
    if title:
        print(f"{title} …", flush=True)
    # uv draws its own progress on a terminal
    shown = sys.stderr.isatty() and "--quiet" not in command
    output = None if shown else subprocess.PIPE
    began = time.monotonic()
    with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environ) as run:
        printed = b""
        while True:
            try:
                printed = run.communicate(timeout=BEAT_SECONDS)[0] or b""
                break
            except subprocess.TimeoutExpired:
                if title and not shown:
                    print(f"  {time.monotonic() - began:.0f} s …", flush=True)
            except KeyboardInterrupt:
                run.wait()
                sys.exit("Interrupted. Type make again to continue.")
    if run.returncode:
        sys.exit(reason(printed.decode(errors="replace"), source))


def reason(printed, source):
    """One line that says what is missing."""
    text = printed.strip()
    lines = [line.strip(" \u00d7╰─▶├│") for line in text.splitlines() if line.strip()]
    if re.search(r"ensurepip|No module named (venv|pip)", text):
        return (
            "This Python cannot create a virtual environment. Install its venv module "
            "(Debian and Ubuntu: apt install python3-venv), then type make again."
        )
    if re.search(r"gcc|cc1|C compiler|clang|error: command", text):
        return f"A package has no wheel for this Python and needs a C compiler: {lines[-1]}"
    if re.search(r"hash(es)? mismatch|DO NOT MATCH THE HASHES", text, re.IGNORECASE):
        return f"A package is not the one that is pinned: {lines[-1]}"
    if re.search(r"No space left", text):
        return "The disk is full. Make room (1.5 GB), then type make again."
    offline = r"dns|resolve|connect|timed out|No matching distribution|no index|offline|not found"
    if re.search(offline, text, re.IGNORECASE):
        why = next((line for line in lines if re.search(offline, line, re.IGNORECASE)), lines[-1])
        return (
            f"No packages from {source}: {why[:200]}\n"
            "Check the network, or name a mirror in pip.conf, then type make again."
        )
    return f"That failed: {lines[-1] if lines else 'see above'}"


if __name__ == "__main__":
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
    main()
