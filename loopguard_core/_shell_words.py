"""The words `_shell` knows commands by: programs, what they are told to do, and flags."""

from __future__ import annotations

import re

READS = frozenset(
    """ls ll dir cat bat head tail less more grep egrep fgrep zgrep rg ag ack find fd locate wc stat file du df ps
    pgrep printenv echo printf pwd which whereis where type whoami id groups date cal uname hostname uptime free
    lsof top htop diff cmp comm sort uniq cut paste awk gawk tr column jq yq xmllint tree eza exa hexdump xxd od
    strings nm ldd objdump md5sum md5 sha1sum sha256sum sha512sum shasum cksum base64 dig nslookup host whois
    ping traceroute netstat ss ifconfig ip arp history man help nl tac rev fold basename dirname realpath
    readlink test [ [[ true false env locale lscpu lsblk nproc getent journalctl dmesg squeue sacct sinfo qstat
    nvidia-smi openssl seq expr bc clear zcat cloc tokei tasklist findstr systeminfo apt-cache""".split()
)
TESTS = frozenset(
    """pytest py.test tox nox unittest jest vitest mocha ava karma cypress playwright ctest rspec phpunit ruff
    flake8 pylint mypy pyright eslint tsc prettier shellcheck hadolint golangci-lint clippy rubocop checkstyle
    bats bazel buck2 ninja make cmake gradle gradlew ./gradlew mvn ./mvnw msbuild xcodebuild javac gcc g++ clang
    rustc""".split()
)
WRITES = frozenset(
    """rm rmdir mv cp mkdir touch chmod chown chgrp ln dd tee truncate split install rsync scp patch unzip tar gzip
    gunzip zip kill pkill killall shutdown reboot crontab useradd usermod passwd mount umount apt apt-get yum
    dnf apk brew systemd-run sendmail mail mailx ansible-playbook alembic createdb dropdb del erase copy move
    ren md rd xcopy robocopy taskkill ffmpeg convert magick mogrify sox pandoc wget aria2c yt-dlp cwebp optipng
    pngquant jpegoptim""".split()
)
FORMATTERS = frozenset("black isort autopep8 yapf rustfmt stylua google-java-format ktlint swiftformat gofmt".split())
TEST_WRITES = frozenset({"install", "deploy", "publish", "--fix", "--write", "fmt"})
CHECKS_ONLY = frozenset({"--check", "--diff", "-d", "-l", "-n", "--dry-run"})
SLEEPS = frozenset({"sleep", "wait", "start-sleep", "timeout-wait"})
SHELL_VERBS = re.compile(
    r"(?P<reads>(?:get|select|where|format|sort|measure|test|compare|resolve|convertto|convertfrom)-\w+)"
    r"|(?:set|add|new|remove|clear|copy|move|rename|start|stop|restart|out)-\w+"
)

# What changes nothing by itself, and of a program that runs another the flags that take a value.
NOTHING = frozenset(
    """cd pushd popd export unset set source . alias shopt ulimit umask trap local declare read fi done esac } ) :
    for case break continue exit return {} \\""".split()
)
RUNS: dict[str, frozenset[str]] = {
    name: frozenset(flags.split())
    for name, flags in (
        *(
            (word, "")
            for word in "time nohup stdbuf exec command builtin then do else elif & ( { ! if while until".split()
        ),
        ("sudo", "-u -g -h -p -C"),
        ("doas", "-u -C"),
        ("nice", "-n"),
        ("ionice", "-c -n -p"),
        ("env", "-u -C"),
        ("xargs", "-n -P -L -I -d -s -a -E"),
    )
}

# Commands whose second word decides.
SUB: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    name: (frozenset(reads.split()), frozenset(writes.split()))
    for name, reads, writes in (
        (
            "git",
            """status log diff show branch ls-files ls-tree ls-remote rev-parse rev-list blame remote describe grep
            shortlog config cat-file reflog whatchanged merge-base symbolic-ref for-each-ref name-rev diff-tree
            check-ignore""",
            """add commit push pull merge rebase checkout switch reset restore stash apply am cherry-pick revert rm mv
            init clone fetch tag clean worktree submodule bisect""",
        ),
        (
            "docker",
            "ps logs images inspect version info stats top port diff history events search",
            "run build rm rmi stop start restart kill exec push pull create tag cp prune",
        ),
        (
            "kubectl",
            "get describe logs top explain version api-resources cluster-info events auth diff wait",
            "apply delete create scale patch edit replace set label annotate drain cordon exec cp expose run",
        ),
        (
            "systemctl",
            "status is-active is-enabled is-failed list-units list-timers show cat",
            "start stop restart reload enable disable mask daemon-reload",
        ),
        (
            "npm",
            "ls list view outdated test t audit explain",
            "install i ci add uninstall remove update publish init link",
        ),
        ("yarn", "list info why test lint build audit", "add remove install upgrade publish init"),
        ("pnpm", "list why test lint build audit outdated", "add remove install update publish init"),
        ("pip", "list show freeze check index", "install uninstall"),
        ("pip3", "list show freeze check index", "install uninstall"),
        ("uv", "tree version", "add remove sync lock init venv"),
        ("poetry", "show check version", "add remove install update lock init"),
        ("cargo", "test check build clippy tree metadata doc bench", "add remove install new init publish update fix"),
        ("go", "test vet build list doc env version", "get install mod generate fmt"),
        ("dotnet", "test build list", "add new publish restore"),
        ("terraform", "plan show state validate output providers version", "apply destroy import init taint"),
        ("helm", "list ls status get history template lint search", "install upgrade uninstall rollback"),
        ("conda", "list info search", "install create remove update"),
        ("svn", "status log diff info", "commit add delete update checkout revert"),
        ("hg", "status log diff", "commit add push pull update"),
    )
}
TESTING_VERBS = frozenset({"test", "t", "vet", "lint", "clippy", "bench"})
VALUED = frozenset(
    """-C -c -n -R -f -H -p --namespace --context --kubeconfig --git-dir --work-tree --file --prefix --host
    --project --profile --region --repo --cwd --directory --manifest-path --project-directory""".split()
)  # flags before the second word that take a value
LISTING = frozenset("ls list inspect df logs ps top stats info config images port events diff".split())
DOCKER_THINGS = frozenset({"compose", "container", "image", "volume", "network", "system", "context", "buildx"})
RUN_SCRIPT = re.compile(
    r"(?:\w+:)?(?:tests?|lint|check|build|compile|type-?check|types|tsc|e2e|unit|spec|coverage|verify|validate)\b(?!:?fix)"
)
READING_VERBS = re.compile(
    r"(?:get|list|describe|show|view|status|head|read|search|ls|logs?|checks|diff|watch|wait|whoami|version)(?:-[\w-]+)?$"
)
PLAIN_READING_VERBS = re.compile(r"(?:get|list|describe|show|view|status|info|checks)$")
WRITING_VERBS = re.compile(
    r"(?:create|delete|update|put|remove|set|add|start|stop|run|merge|close|reopen|edit|apply|send|post|deploy|cp|mv|rm|sync"
    r"|write|patch|scale|restart|destroy|cancel|rerun|enable|disable|import|install|upload|push|attach|detach|invoke|publish"
    r"|rollback|reset|comment|review|approve|revoke)(?:-[\w-]+)?$"
)
CLOUD = frozenset("aws gcloud az gh glab doctl heroku flyctl vercel oc nomad consul vault argocd".split())
PROJECT_RUNNERS = {
    **dict.fromkeys(("npm", "pnpm", "yarn"), ("exec",)),
    **dict.fromkeys(("uv", "poetry", "pipenv", "pdm", "hatch", "rye"), ("run",)),
}

REDIS_READS = frozenset(
    "get mget keys scan info ttl exists llen lrange hget hgetall smembers scard zrange type dbsize ping".split()
)
LISTS_ONLY = {
    name: frozenset(words.split())
    for name, words in (
        ("crontab", "-l"),
        ("unzip", "-l -v -t -Z"),
        ("gunzip", "-l -t"),
        ("gzip", "-l -t"),
        ("kill", "-0 -l"),
        ("apt", "list show search policy"),
        ("brew", "list ls info search outdated"),
        ("dnf", "list info search"),
        ("yum", "list info search"),
        ("apk", "info search list"),
        ("rsync", "-n --dry-run"),
        ("patch", "--dry-run"),
        ("alembic", "current history heads show check"),
    )
}
