"""What a tool is taken for: by its name, by the shell command or the statement in its arguments, by annotations."""

from __future__ import annotations

from typing import Any

import pytest

from loopguard_core._shell import command_in, kind_of
from loopguard_core._traits import annotated, infer

TESTS = [
    "timeout 30 pytest -q",
    "npm test",
    "npm run lint",
    "yarn test",
    "python -m pytest tests/",
    "pytest -x tests/test_a.py",
    "pytest tests 2>&1 | tail -20",
    "pytest 2>/dev/null",
    "pytest > /dev/null",
    "pytest &> /dev/null",
    "npx tsc --noEmit",
    "npx eslint src",
    "cargo test",
    "cargo clippy",
    "go test ./...",
    "go vet ./...",
    "make test",
    "mvn test",
    "./gradlew test",
    "ruff check .",
    "mypy src",
]

READS = [
    "ls -la",
    "ls",
    "cat src/app.py",
    "cat a.txt | head -20",
    "head -n 50 log.txt",
    "tail -n 100 /var/log/syslog",
    "grep -rn 'def main' src/",
    "grep -c 'a > b' x.txt",
    "rg --files | wc -l",
    "find . -name '*.py'",
    "find . -type f | xargs grep TODO",
    "cd /app && ls",
    "cd src && grep x y.py",
    "pwd; whoami",
    "wc -l < data.csv",
    "stat file.txt",
    "du -sh * | sort -h | tail -5",
    "ps aux | grep python",
    "echo hello",
    'echo "a > b"',
    "printf '%s\\n' x",
    "awk '{print $1}' data.csv",
    "sed -n '1,50p' main.py",
    "perl -ne 'print if /x/' f.txt",
    "jq '.items[] | .id' out.json",
    "diff a.txt b.txt",
    "sort f.txt | uniq -c",
    "env | grep PATH",
    "FOO=1 BAR=2 printenv FOO",
    "sudo cat /etc/hosts",
    "time ls",
    "nohup cat x",
    "/usr/bin/grep x y",
    "/bin/cat x",
    "git status",
    "git log --oneline -5",
    "git diff HEAD~1 -- src",
    "git show HEAD:README.md",
    "git branch",
    "git branch -a",
    "git remote -v",
    "git stash list",
    "git tag",
    "git tag -l 'v1.*'",
    "git config --get user.name",
    "git -C /repo status",
    "git --no-pager log",
    "git worktree list",
    "docker ps -a",
    "docker logs web",
    "docker compose ps",
    "docker compose logs web",
    "kubectl get pods -n prod",
    "kubectl describe pod web-1",
    "kubectl -n prod get pods",
    "kubectl logs web-1 --tail=20",
    "systemctl status nginx",
    "pip list",
    "pip show requests",
    "python3 --version",
    "terraform plan",
    "helm list",
    "aws s3 ls",
    "aws ec2 describe-instances",
    "gh run view 123",
    "gh pr list",
    "gcloud compute instances list",
    "curl -s https://x.test/api",
    "curl -s https://x.test/api | jq .",
    "curl -o /dev/null -s https://x.test",
    "wget -qO- https://x.test",
    "psql -c 'SELECT count(*) FROM t'",
    "sqlite3 app.db '.tables'",
    "tar tf a.tar",
    "tar -tzf a.tgz",
    "test -f x && echo yes",
    "[ -f x ] || echo no",
    "if [ -f x ]; then cat x; fi",
    "! grep -q x y",
    "for",
][:-1]

WRITES = [
    "rm -rf build",
    "rm x && ls",
    "ls && rm x",
    "mv a b",
    "cp a b",
    "mkdir -p out",
    "touch x",
    "chmod +x run.sh",
    "echo hi > out.txt",
    "echo hi >> out.txt",
    "echo hi >out.txt",
    "cat a 1> b",
    "cat a 2> err.log",
    "ls &> all.log",
    "cat <<'EOF' > a.py\nprint(1)\nEOF",
    "cat <<EOF | tee a.py\nx > y\nEOF",
    "tee out.txt < in.txt",
    "sed -i 's/a/b/' f.py",
    "sed -i.bak 's/a/b/' f.py",
    "sed -E -i 's/a/b/' f.py",
    "perl -pi -e 's/a/b/' f",
    "find . -name '*.pyc' -delete",
    "find . -name x -exec rm {} ;",
    "xargs rm < list",
    "git add -A",
    "git commit -m 'x'",
    "git push origin main",
    "git checkout main",
    "git stash",
    "git stash pop",
    "git branch new-branch",
    "git branch -D old",
    "git tag v1.0",
    "git remote add up url",
    "git config user.name x",
    "git -C /repo commit -m x",
    "git reset --hard",
    "git pull",
    "docker run -d web",
    "docker rm web",
    "docker compose up -d",
    "docker build .",
    "docker exec web ls",
    "kubectl apply -f x.yml",
    "kubectl delete pod x",
    "kubectl -n prod scale deploy/web --replicas=3",
    "systemctl restart nginx",
    "sudo systemctl stop nginx",
    "npm install",
    "npm ci",
    "npm i lodash",
    "yarn add x",
    "pip install requests",
    "python -m pip install x",
    "python -m venv .venv",
    "uv sync",
    "poetry add x",
    "cargo add serde",
    "go mod tidy",
    "terraform apply -auto-approve",
    "helm upgrade web ./chart",
    "aws s3 cp a s3://b/a",
    "aws s3 rm s3://b/a",
    "gh pr create --title x",
    "gh pr merge 5",
    "curl -X POST https://x.test",
    "curl -XDELETE https://x.test/1",
    "curl -d '{}' https://x.test",
    "curl --data-binary @f https://x.test",
    "curl --request PUT https://x.test",
    "curl -O https://x.test/f.zip",
    "curl -o f.zip https://x.test/f.zip",
    "curl -F file=@x https://x.test",
    "wget https://x.test/f.zip",
    "psql -c 'DELETE FROM t'",
    'mysql -e "INSERT INTO t VALUES (1)"',
    "tar xzf a.tgz",
    "tar czf a.tgz dir",
    "unzip a.zip",
    "kill -9 123",
    "pkill node",
    "apt-get install -y jq",
    "dd if=a of=b",
    "ln -s a b",
    "make install",
    "eslint --fix src",
    "npx prettier --write .",
    "crontab -r",
    "rsync -a a/ b/",
    "scp a host:b",
    "patch -p1 < x.diff",
    "truncate -s 0 log",
    "(cd x && rm y)",
    "{ rm y; }",
    "ls | tee list.txt",
    "ls; sleep 1; rm x",
    "env FOO=1 rm x",
    "sudo -u root rm x",
    "bash -c 'rm x'",
    'sh -c "rm -rf x"',
    "for f in *.txt; do rm $f; done",
    "while true; do rm x; done",
    "echo $(rm x)",
    "if true; then rm x; fi",
]

SLEEPS = [
    "sleep 5",
    "sleep 5 && sleep 5",
    "cd /x && sleep 30",
    "Start-Sleep 5",
    "sleep 0.5;",
    "/bin/sleep 3",
    "timeout 5 sleep 3",
]

READS_AND_SLEEPS = [
    "sleep 30 && kubectl get pods",
    "sleep 10; cat log.txt",
    "sleep 5 & wait; ps aux",
    "cat log; sleep 3",
    "while ! curl -s localhost:80; do sleep 1; done",
]

UNKNOWN = [
    "",
    "   ",
    "./run.sh",
    "python app.py",
    "python -c 'print(1)'",
    "node server.js",
    "foo --bar",
    "ls && ./deploy",
    "bash run.sh",
    "ssh host uptime",
    "git frobnicate",
    "kubectl",
    "npm",
    "$CMD",
    "gh",
    "python",
    "python3 - <<'EOF'\nprint(1)\nEOF",
    'eval "$X"',
    "sleep 5 && ./run.sh",
]


@pytest.mark.parametrize(
    ("command", "kind", "sleeps"),
    [
        *((command, "reads", False) for command in READS),
        *((command, "tests", False) for command in TESTS),
        *((command, "writes", "sleep" in command) for command in WRITES),
        *((command, "sleeps", True) for command in SLEEPS),
        *((command, "reads", True) for command in READS_AND_SLEEPS),
        *((command, "unknown", "sleep" in command) for command in UNKNOWN),
    ],
)
def test_a_shell_command(command: str, kind: str, sleeps: bool) -> None:
    assert kind_of(command) == (kind, sleeps)


MORE = [
    # Where a program's own flags come before the word that decides.
    ("git -c 'user.name=a b' commit -m x", "writes"),
    ("docker volume ls", "reads"),
    ("docker volume rm data", "writes"),
    ("docker system prune -f", "writes"),
    ("docker-compose ps", "reads"),
    ("docker-compose up -d", "writes"),
    ("docker compose -f dev.yml logs", "reads"),
    ("kubectl rollout status deploy/web", "reads"),
    ("kubectl rollout restart deploy/web", "writes"),
    ("kubectl config current-context", "reads"),
    ("aws --profile p s3 ls", "reads"),
    ("gh -R o/r pr list", "reads"),
    ("gh issue list --label delete", "reads"),
    ("gh api repos/o/r", "reads"),
    ("gh api repos/o/r/issues -f title=x", "writes"),
    ("gh pr comment 5 --body x", "writes"),
    ("vault write secret/x a=b", "writes"),
    # Programs that run others.
    ("uv run pytest -q", "tests"),
    ("uv run python app.py", "unknown"),
    ("uv pip install x", "writes"),
    ("poetry run mypy .", "tests"),
    ("npx -y prettier --check .", "tests"),
    ("npm run build", "tests"),
    ("npm run test:unit", "tests"),
    ("npm run deploy", "unknown"),
    ("npm run lint:fix", "unknown"),
    ("nice -n 10 make", "tests"),
    ("xargs -n 1 rm", "writes"),
    ("find . -exec grep -l x {} +", "reads"),
    ("timeout -k 5 30 pytest", "tests"),
    ("timeout --signal=KILL 60 rm -rf x", "writes"),
    ("env -u X pytest", "tests"),
    ("bash -lc 'cd /app && pytest -q'", "tests"),
    ('zsh -c "git push"', "writes"),
    ("python -m black .", "writes"),
    ("python -m black --check .", "reads"),
    ("black .", "writes"),
    ("black --check .", "reads"),
    ("ruff format .", "writes"),
    ("ruff format --check .", "reads"),
    ("cargo fmt", "writes"),
    ("cargo fmt --check", "reads"),
    # Loops, substitutions, quoting, redirections.
    ("for i in 1 2 3; do curl -s http://x.test; done", "reads"),
    ("for i in $(seq 1 5); do cat log; done", "reads"),
    ("X=$(date) && echo $X", "reads"),
    ('echo "built $(rm -rf build)"', "writes"),
    ("FOO='a b' rm x", "writes"),
    ('"rm" x', "writes"),
    ("'./my script.sh'", "unknown"),
    ("ls && './my script.sh'", "unknown"),
    ("grep x <<< 'rm y > z'", "reads"),
    ("python3 - <<'EOF'\nopen('x', 'w').write('a > b')\nEOF", "unknown"),
    ("cat <<'EOF'\nrm x > y\nEOF", "reads"),
    ("cat <<EOF\nrm x\nEOF\nrm y", "writes"),
    ("cat <<EOF\nrm x\nEOFS", "writes"),
    ("cat <<EO\nrm x\nEOF\nEO", "reads"),
    ("cat <<'A'\nrm x\nA\ncat <<-B\nrm y\n\tB\n", "reads"),
    ("cat <<A && cat <<B\nrm x\nA", "reads"),
    ("echo x >>/dev/null", "reads"),
    ("make 2>&1 | tail -5", "tests"),
    ('cat > "out.txt" <<EOF\nx\nEOF', "writes"),
    # What only lists, and what only seems to.
    ("crontab -l", "reads"),
    ("unzip -l a.zip", "reads"),
    ("kill -0 123", "reads"),
    ("apt list --installed", "reads"),
    ("apt-cache policy jq", "reads"),
    ("terraform --version", "reads"),
    ("./tool --help", "reads"),
    ("tar --extract -f a.tar", "writes"),
    ("perl script.pl", "unknown"),
    ("perl -i -pe 's/a/b/' f", "writes"),
    ("psql -f migrate.sql", "unknown"),
    ("sqlite3 app.db < schema.sql", "unknown"),
    ("redis-cli get k", "reads"),
    ("redis-cli -h x set k 1", "writes"),
    ("mongosh --eval 'db.t.insertOne({})'", "writes"),
    ("curl -G -d q=x https://x.test", "reads"),
    ("curl -sX POST https://x.test", "writes"),
    ("curl -sLo f https://x.test", "writes"),
    ("http POST x.test a=b", "writes"),
    ("Get-ChildItem | Select-Object Name", "reads"),
    ("Remove-Item x", "writes"),
    ("del x.txt", "writes"),
]


@pytest.mark.parametrize(("command", "kind"), MORE)
def test_a_shell_command_that_is_read_closely(command: str, kind: str) -> None:
    assert kind_of(command)[0] == kind


def test_a_command_is_cut_where_it_is_long() -> None:
    """A file written by a here document is longer than what is looked at; its text is still not taken for commands."""
    body = "rm -rf x > y\n" * 1000
    assert kind_of(f"cat <<'EOF' > a.py\n{body}EOF") == ("writes", False)
    assert kind_of(f"python3 - <<'EOF'\n{body}EOF") == ("unknown", False)
    assert kind_of("ls" + " " * 100_000 + "; rm x") == ("reads", False)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ("ls", "ls"),
        ({"command": "ls"}, "ls"),
        ({"cmd": ["ls", "-l"]}, "ls -l"),
        ({"command": ["bash", "-lc", "ls -l"]}, "ls -l"),
        ({"command": ["/bin/sh", "-c", "ls"]}, "ls"),
        ({"commands": ["cd x", "ls"]}, "cd x ls"),
        ({"args": "get pods"}, "get pods"),
        ({"command": ""}, ""),
        ({"command": None}, None),
        ({"command": 5}, None),
        ({"command": [1, 2]}, None),
        ({"command": []}, None),
        ({}, None),
        (None, None),
        (["ls"], None),
    ],
)
def test_where_the_command_is(arguments: Any, command: str | None) -> None:
    assert command_in(arguments) == command


R, M, P, T, W, D, U = "reads", "mutates", "polls", "tests", "waits", "delegates", ""
NAMES = {
    R: """get_weather list_files read_file search_docs find_user fetch_invoice lookup_customer query_db view_image
        show_diff describe_table check_inventory grep glob inspect_element count_rows scan_ports browse_page
        explain_query analyze_logs summarize_text calculate compute_tax validate_address verify_email
        compare_versions take_screenshot extract_text scrape_page load_page preview think
        list_pull_requests getUser listIssues readFile SearchDocs get-user mcp__github__get_issue functions.get_weather
        github:list_repos web_search retrieve_documents get_order_history order_details
        user_info account_summary git_log read_messages ls cat""",
    M: """send_email create_issue update_record delete_file remove_user write_file edit_file insert_row replace_text
        apply_patch put_object post_message save_note store_memory set_status add_comment append_line move_file
        rename_file merge_pr commit_changes push_branch deploy_app pay_invoice charge_card refund_payment
        transfer_funds book_flight cancel_order submit_form publish_post upload_file install_package approve_request
        assign_ticket close_ticket archive_thread tag_image comment_on_issue reply_to_email schedule_meeting
        buy_stock sell_stock purchase_item withdraw_cash invite_user grant_access reset_password restart_service
        rollback_release drop_table subscribe_user notify_team sendEmail createIssue WriteFile
        mcp__slack__post_message str_replace_editor click type_text press_key scroll navigate_to_url browser_click
        record_vote kill_process start_server""",
    P: """get_job_status check_status poll_job job_progress wait_for_deployment deployment_status
        check_health fetch_job server_health""",
    T: "run_tests lint_code test_login",
    W: "sleep wait pause wait_seconds delay wait_for_seconds",
    D: """transfer_to_billing handoff_to_agent delegate_work transfer_to_refund_agent research_agent call_agent task
        switch_to_sales subagent""",
    U: "foo do_it frobnicate process handle main x pipeline bash python execute_code shell run_command terminal",
}


@pytest.mark.parametrize(("name", "trait"), [(name, trait) for trait, names in NAMES.items() for name in names.split()])
def test_a_tool_by_its_name(name: str, trait: str) -> None:
    expected = {"": set(), P: {R, P}, T: {R, T}}.get(trait, {trait})
    assert infer(name).traits == expected


@pytest.mark.parametrize(
    ("name", "traits"),
    [
        ("vector_store_search", {"reads"}),
        ("get_build_status", {"reads", "polls"}),
        ("get_run", {"reads", "polls"}),
        ("deploy_status", {"reads", "polls"}),
        ("pipeline_build_progress", {"reads", "polls"}),
        ("create_status", {"reads"}),
    ],
)
def test_a_noun_that_is_also_a_verb(name: str, traits: set[str]) -> None:
    assert infer(name).traits == traits


@pytest.mark.parametrize(
    ("arguments", "traits"),
    [
        ({"host": "app-01", "command": "sudo /opt/install.sh 5.3.1 && sudo systemctl restart app"}, {"mutates"}),
        ({"host": "app-01", "command": "systemctl status app"}, {"reads"}),
        ({"host": "app-01", "command": "pytest -q"}, {"reads", "tests"}),
        ({"command": "strike match"}, set()),
        ({"host": "app-01"}, set()),
    ],
)
def test_a_command_line_tells_where_the_tool_is_no_shell_by_its_name(arguments: Any, traits: set[str]) -> None:
    assert infer("run_on_host").of(arguments) == traits


@pytest.mark.parametrize("name", ["HassTurnOff", "turn_on_light", "toggle_switch", "lock_door", "dim_lights"])
def test_what_switches_things_changes_them(name: str) -> None:
    assert infer(name).traits == {"mutates"}


def test_a_queue_is_a_thing_where_it_ends_a_name() -> None:
    assert not infer("slurm_queue").starts
    assert infer("queue_job").starts


def test_the_tables_are_as_long_as_they_should_be() -> None:
    assert len(READS + WRITES + SLEEPS + READS_AND_SLEEPS + UNKNOWN + MORE) >= 120
    assert len(" ".join(NAMES.values()).split()) >= 120


@pytest.mark.parametrize(
    "name", ["bash", "Bash", "run_shell_command", "container.exec", "mcp__srv__bash", "execute_command"]
)
def test_a_shell_is_known_by_its_name(name: str) -> None:
    nature = infer(name)
    assert nature.shell
    assert nature.of({"command": "ls"}) == {"reads"}
    assert nature.of({"command": "rm x"}) == {"mutates"}
    assert nature.of({"command": "sleep 5"}) == {"waits"}
    assert nature.of({"command": "sleep 5; cat log"}) == {"reads", "polls"}
    assert nature.of({"command": "./x"}) == set()
    assert nature.of({}) == set()


@pytest.mark.parametrize("name", ["kubectl", "git", "docker", "gh"])
def test_a_tool_that_is_named_for_a_program_runs_it(name: str) -> None:
    verbs = {
        "kubectl": ("get pods", "delete pod x"),
        "git": ("status", "push"),
        "docker": ("ps", "rm x"),
        "gh": ("pr list", "pr merge 1"),
    }
    reading, writing = verbs[name]
    for command in (reading, f"{name} {reading}"):
        assert infer(name).of({"command": command}) == {"reads"}
    assert infer(name).of({"args": writing}) == {"mutates"}


@pytest.mark.parametrize(
    ("tool", "arguments", "traits"),
    [
        ("run_sql", {"query": "SELECT 1"}, {"reads"}),
        ("run_sql", {"sql": "  -- note\n select * from t"}, {"reads"}),
        ("run_sql", {"sql": "WITH x AS (SELECT 1) SELECT * FROM x"}, {"reads"}),
        ("run_sql", {"sql": "WITH x AS (SELECT 1) DELETE FROM t"}, {"mutates"}),
        ("run_sql", {"sql": "INSERT INTO t VALUES (1)"}, {"mutates"}),
        ("query_database", {"query": "DROP TABLE t"}, {"mutates"}),
        ("http_request", {"method": "GET", "url": "x"}, {"reads"}),
        ("http_request", {"method": "post", "url": "x"}, {"mutates"}),
        ("http_request", {"method": "DELETE"}, {"mutates"}),
        ("http_request", {"method": 5}, set()),
        ("query_database", {"query": 5}, {"reads"}),
        ("query_database", "SELECT", {"reads"}),
    ],
)
def test_a_statement_in_the_arguments_decides(tool: str, arguments: Any, traits: set[str]) -> None:
    assert infer(tool).of(arguments) == traits


@pytest.mark.parametrize(
    ("annotations", "traits"),
    [
        ({"readOnlyHint": True}, {"reads"}),
        ({"readOnlyHint": False}, {"mutates"}),
        ({"destructiveHint": True}, {"mutates"}),
        ({"readOnlyHint": True, "destructiveHint": True}, {"reads"}),
        ({"destructiveHint": False}, None),
        ({"idempotentHint": True}, None),
        ({"readOnlyHint": "yes"}, None),
        ({"readOnlyHint": 1}, None),
        ({}, None),
    ],
)
def test_what_annotations_say(annotations: dict[str, Any], traits: set[str] | None) -> None:
    assert annotated(annotations) == traits


@pytest.mark.parametrize("name", ["", "_", "__", "a" * 10_000, "\ud800", "名前", "  ", "." * 300, "get_" * 49])
def test_an_odd_name_tells_what_it_can(name: str) -> None:
    assert infer(name).traits in (set(), {"reads"})


@pytest.mark.parametrize(
    ("tool", "arguments", "traits"),
    [
        ("search_replace", {"old_string": "a"}, "mutates"),
        ("find_and_replace", {}, "mutates"),
        ("str_replace_editor", {"command": "view", "path": "a"}, "reads"),
        ("str_replace_editor", {"command": "create", "path": "a"}, "mutates"),
        ("str_replace_editor", {"command": "str_replace"}, "mutates"),
        ("str_replace_editor", {"command": "no such thing at all"}, "mutates"),
        ("memory", {"command": "view"}, "reads"),
        ("calendar", {"action": "list_events"}, "reads"),
        ("calendar", {"action": "create_event"}, "mutates"),
        ("browser", {"action": "click"}, "mutates"),
        ("get_items", {"action": "delete"}, "reads"),
    ],
)
def test_an_argument_may_name_what_is_done(tool: str, arguments: dict[str, str], traits: str) -> None:
    nature = infer(tool)
    assert traits in (nature.of(arguments) if nature.by_arguments else nature.traits)


@pytest.mark.parametrize(
    ("arguments", "command"),
    [({"c": "ls -la"}, "ls -la"), ({"c": "ls", "n": 3}, None), ({"a": "ls", "b": "rm"}, None), ({}, None)],
)
def test_the_only_text_of_a_shell_call_is_its_command(arguments: Any, command: str | None) -> None:
    assert command_in(arguments) == command


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("portal-cli order show 88-2041 --field status", "reads"),
        ("acme list", "reads"),
        ("acme order delete 7", "unknown"),
        ("acme frobnicate", "unknown"),
        ("acme run show", "unknown"),
    ],
)
def test_a_program_nobody_knows_reads_if_it_is_told_to(command: str, kind: str) -> None:
    assert kind_of(command)[0] == kind


def test_a_program_with_its_verb_in_a_field() -> None:
    assert infer("helm").of({"release": "a", "action": "upgrade"}) == {"mutates"}
    assert infer("helm").of({"release": "a", "action": "status"}) == {"reads"}


@pytest.mark.parametrize("runner", ["npx ", "uv run ", "npm exec ", "find . -exec ", "bunx "])
def test_programs_that_run_one_another_without_end(runner: str) -> None:
    assert kind_of(runner * 400) == ("unknown", False)
    assert kind_of(runner * 3 + "pytest")[0] == "tests"
