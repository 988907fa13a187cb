"""What a shell command does, by the first words of its parts: reads, tests, writes, sleeps, or unknown.

| class | first words |
|---|---|
| reads | `ls`, `cat`, `grep`, `git status`, `kubectl get`, `curl` without a body, ... |
| tests | test runners, linters and builds: they check, and change nothing the agent works on |
| writes | `rm`, `mv`, `sed -i`, `git commit`, `pip install`, `>` into a file, ... |
| sleeps | `sleep`, `wait` |

A command counts as writing if any part writes, as reading if every part reads or tests, as a wait if it only sleeps.
Anything else is unknown.
"""

from __future__ import annotations

import re
from typing import Any, Literal

Kind = Literal["reads", "writes", "sleeps", "unknown"]

_READS = frozenset(
    """ls ll dir cat bat head tail less more grep egrep fgrep rg ag ack find fd locate wc stat file du df ps pgrep printenv
    echo printf pwd which whereis type whoami id groups date uname hostname uptime free lsof top htop diff cmp comm sort uniq cut
    awk gawk tr column jq yq xmllint tree hexdump xxd od strings md5sum sha1sum sha256sum cksum base64 dig nslookup host whois ping
    traceroute netstat ss ifconfig ip arp history man help nl tac rev fold basename dirname realpath readlink test [ [[ true false
    env locale lscpu lsblk nproc journalctl dmesg squeue sacct sinfo qstat gh-run nvidia-smi openssl file get-content get-childitem
    select-string""".split()
)
_TESTS = frozenset(
    """pytest py.test tox nox unittest jest vitest mocha ava karma cypress playwright ctest rspec phpunit ruff flake8 pylint mypy
    pyright eslint tsc prettier shellcheck hadolint golangci-lint clippy rubocop checkstyle bats bazel buck2 ninja make cmake gradle
    gradlew ./gradlew mvn ./mvnw msbuild xcodebuild javac gcc g++ clang rustc""".split()
)
_WRITES = frozenset(
    """rm rmdir mv cp mkdir touch chmod chown chgrp ln dd tee truncate install rsync scp patch unzip tar gzip gunzip zip kill pkill
    killall shutdown reboot crontab useradd usermod passwd mount umount apt apt-get yum dnf apk brew systemd-run sendmail mail
    mailx set-content add-content remove-item new-item ansible-playbook alembic createdb dropdb make-install""".split()
)
_FORMATTERS = frozenset("black isort autopep8 yapf rustfmt stylua google-java-format ktlint swiftformat".split())
_TEST_WRITES = frozenset({"install", "deploy", "publish", "--fix", "--write", "fmt"})
_SLEEPS = frozenset({"sleep", "wait", "start-sleep", "timeout-wait"})

# Commands whose second word decides.
_SUB: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    name: (frozenset(reads.split()), frozenset(writes.split()))
    for name, reads, writes in (
        ("git", "status log diff show branch ls-files ls-tree rev-parse rev-list blame remote describe grep shortlog config cat-file "
                "reflog whatchanged merge-base symbolic-ref for-each-ref name-rev diff-tree --version",
                "add commit push pull merge rebase checkout switch reset restore stash apply am cherry-pick revert rm mv init clone fetch "
                "tag clean worktree submodule bisect"),
        ("docker", "ps logs images inspect version info stats top port diff history events search",
                   "run build rm rmi stop start restart kill exec compose push pull create tag cp network volume system prune"),
        ("kubectl", "get describe logs top explain version api-resources cluster-info events auth diff",
                    "apply delete create scale rollout patch edit replace set label annotate drain cordon exec cp expose run"),
        ("systemctl", "status is-active is-enabled list-units show cat", "start stop restart reload enable disable mask daemon-reload"),
        ("npm", "ls list view outdated test t audit run run-script explain --version", "install i ci add uninstall remove update publish init link"),
        ("yarn", "list info why test run lint build audit", "add remove install upgrade publish init"),
        ("pnpm", "list why test run lint build audit outdated", "add remove install update publish init"),
        ("pip", "list show freeze check --version index", "install uninstall"),
        ("pip3", "list show freeze check --version index", "install uninstall"),
        ("uv", "tree --version", "add remove sync lock init venv"),
        ("poetry", "show check --version", "add remove install update lock init"),
        ("cargo", "test check build clippy tree metadata doc bench fmt --version", "add remove install new init publish update"),
        ("go", "test vet build list doc env version", "get install mod generate fmt"),
        ("dotnet", "test build list --info", "add new publish restore"),
        ("terraform", "plan show state validate output providers version", "apply destroy import init taint"),
        ("helm", "list status get history template lint", "install upgrade uninstall rollback"),
        ("conda", "list info", "install create remove update"),
        ("svn", "status log diff info", "commit add delete update checkout revert"),
        ("hg", "status log diff", "commit add push pull update"),
    )
}  # fmt: skip
_READING_VERBS = re.compile(
    r"(?:get|list|describe|show|view|status|head|read|search|ls|logs?|checks|diff|watch)(?:-[\w-]+)?$"
)
_WRITING_VERBS = re.compile(
    r"(?:create|delete|update|put|remove|set|add|start|stop|run|merge|close|edit|apply|send|post|deploy|cp|mv|rm|sync)(?:-[\w-]+)?$"
)
_CLOUD = frozenset(
    {
        "aws",
        "gcloud",
        "az",
        "gh",
        "glab",
        "doctl",
        "heroku",
        "flyctl",
        "vercel",
        "oc",
        "nomad",
        "consul",
        "vault",
        "argocd",
    }
)
_SKIPPED = frozenset(
    "sudo doas time nohup nice ionice stdbuf exec command builtin env xargs then do else & ( { ! if while until &&".split()
)
_LONG = 4096
_QUOTES = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?.*?^\s*\1\b", re.DOTALL | re.MULTILINE)
_REDIRECT = re.compile(r"(?<![<>=&\d-])(?:\d?>>?|&>)\s*(?!&|/dev/(?:null|stderr|stdout)|\s*$)\S")
_PARTS = re.compile(r"\|\||&&|[;|\n]|(?<!>)&(?!>)")
_ASSIGNMENT = re.compile(r"\w+=\S*$")
_SQL_WRITE = re.compile(
    r"\b(?:insert|update|delete|drop|create|alter|truncate|merge|grant|revoke|replace)\b", re.IGNORECASE
)


def is_program(name: str) -> bool:
    """Whether a tool is named like a program whose commands are known: `kubectl`, `git`, `docker`."""
    return name in _SUB or name in _CLOUD or name in _TESTS


def command_in(arguments: Any) -> str | None:
    """The command of a shell tool's call, wherever SDKs put it; None if there is none."""
    if isinstance(arguments, str):
        return arguments
    if type(arguments) is not dict:  # a strange mapping may do anything
        return None
    for name in ("command", "cmd", "commands", "script", "shell_command", "args", "arguments", "input", "code"):
        value = arguments.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list | tuple) and value and all(isinstance(part, str) for part in value):
            # ["bash", "-lc", "ls -l"] and ["ls", "-l"]
            if len(value) > 2 and value[1].startswith("-") and value[0].rpartition("/")[2] in ("bash", "sh", "zsh"):
                return str(value[2])
            return " ".join(value)
    return None


def kind_of(command: str) -> tuple[Kind, bool]:
    """What a command does, and whether it also sleeps.

    Args:
        command: As the model wrote it; its first 4 KB count.
    """
    plain = command[:_LONG]
    plain = _QUOTES.sub(" '' ", _HEREDOC.sub(" ", plain))
    kinds = [kind for part in _PARTS.split(plain) if (kind := _part(part, command)) is not None]
    sleeps = "sleeps" in kinds
    rest = [kind for kind in kinds if kind != "sleeps"]
    if _REDIRECT.search(plain) or "writes" in rest:
        return "writes", sleeps
    if "unknown" in rest or not kinds:
        return "unknown", sleeps
    return ("reads" if rest else "sleeps"), sleeps


def _part(part: str, whole: str) -> Kind | None:
    words = part.split()
    while words and (words[0] in _SKIPPED or _ASSIGNMENT.match(words[0]) or words[0].startswith("-")):
        words.pop(0)
    if words and words[0] == "timeout":
        words = words[2:]
    if not words or words[0] in (
        "cd",
        "pushd",
        "popd",
        "export",
        "set",
        "source",
        ".",
        "fi",
        "done",
        "}",
        ")",
        ":",
        "''",
    ):
        return None
    name = (
        words[0].rpartition("/")[2].lower() if "/" in words[0] and not words[0].startswith("./") else words[0].lower()
    )
    rest = words[1:]
    if name in _SLEEPS:
        return "sleeps"
    if name in ("python", "python3", "node", "npx", "uvx", "bunx", "bun", "deno", "ruby", "php"):
        return _interpreter(rest)
    if name in _SUB:
        return _subcommand(name, rest)
    if name in _CLOUD:
        return _cloud(rest)
    if name in ("sed", "perl"):
        return (
            "writes" if any(word.startswith(("-i", "-pi", "-ni")) or word == "--in-place" for word in rest) else "reads"
        )
    if name in ("curl", "wget", "http", "https", "httpie"):
        return _http(name, rest, whole)
    if name in ("psql", "mysql", "sqlite3", "bq", "mongosh", "redis-cli"):
        return "writes" if _SQL_WRITE.search(whole) else "reads"
    if name in _WRITES:
        return "reads" if name == "tar" and rest[:1] and "t" in rest[0] else "writes"
    if name in _FORMATTERS or (name == "ruff" and rest[:1] == ["format"]):
        return "reads" if {"--check", "--diff", "-d", "-l", "-n", "--dry-run"} & set(rest) else "writes"
    if name in _TESTS:
        return "writes" if _TEST_WRITES & set(rest) else "reads"
    return "reads" if name in _READS else "unknown"


def _interpreter(rest: list[str]) -> Kind:
    if rest[:1] == ["-m"] and len(rest) > 1:
        module = rest[1]
        if module in ("pip", "venv"):
            return "writes" if "install" in rest or module == "venv" else "reads"
        return "reads" if module in _TESTS or module in ("json.tool", "py_compile", "compileall", "http") else "unknown"
    if rest[:1] in (["--version"], ["-V"], ["-v"]):
        return "reads"
    return "reads" if rest and rest[0] in _TESTS else "unknown"


def _subcommand(name: str, rest: list[str]) -> Kind:
    reads, writes = _SUB[name]
    verbs = [word for word in rest if not word.startswith("-") or word == "--version"]
    if name == "git" and verbs[:1] in (["branch"], ["remote"], ["config"], ["stash"], ["tag"], ["worktree"]):
        # These list when they name nothing, or are told to.
        tells = verbs[1:2] in (["list"], ["show"], ["-v"], ["get-url"], []) and not {"-d", "-D", "-m"} & set(rest)
        return "reads" if (tells and verbs[0] != "stash") or verbs[1:2] == ["list"] else "writes"
    if name == "docker" and verbs[:1] == ["compose"]:
        verbs = verbs[1:]
        return "reads" if verbs[:1] and verbs[0] in ("ps", "logs", "config", "images", "top") else "writes"
    verb = verbs[0].lower() if verbs else ""
    if verb in writes:
        return "writes"
    return "reads" if verb in reads else "unknown"


def _cloud(rest: list[str]) -> Kind:
    # The verb is the last of the first words that is one: `gh run view`, `aws s3 cp`, `gcloud compute instances list`.
    for word in reversed([word.lower() for word in rest if not word.startswith("-")][:4]):
        if _READING_VERBS.match(word):
            return "reads"
        if _WRITING_VERBS.match(word):
            return "writes"
    return "unknown"


def _http(name: str, rest: list[str], whole: str) -> Kind:
    flags = set(rest)
    if re.search(r"(?:-X|--request|--method)[ =]?['\"]?(?:POST|PUT|PATCH|DELETE)", whole, re.IGNORECASE):
        return "writes"
    if any(
        word.startswith(("-d", "--data", "-F", "--form", "-T", "--upload-file", "--json", "--post")) for word in flags
    ):
        return "writes"
    if name == "wget" or flags & {"-O", "--remote-name", "-o", "--output"}:
        return (
            "reads"
            if any(word.startswith(("-qO-", "-O-", "--spider")) or word in ("-", "/dev/null") for word in rest)
            else "writes"
        )
    return "reads"
