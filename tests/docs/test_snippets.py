"""Every block of the docs does what its page says."""

import asyncio
import sys

import pytest

for sdk in ("langchain_openai", "agents", "llama_index.core", "opentelemetry"):
    pytest.importorskip(sdk)

import doc_setups
from doc_snippets import Runner, blocks, pages

from loopguard_core.testing import ScriptedServer, gives_up_when_refused, never_listens


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with the files that pages name, and nothing of this machine's."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("LOOPGUARD_CONFIG", "LOOPGUARD_ENABLED", "LOOPGUARD_PRESET"):
        monkeypatch.delenv(name, raising=False)
    doc_setups.files(here)
    yield here
    for name, module in list(sys.modules.items()):  # a page may have written a module and imported it
        if str(getattr(module, "__file__", None)).startswith(str(here)):
            del sys.modules[name]


@pytest.fixture
def server(monkeypatch, page):
    """A model on loopback that loops: what every client of these pages finds when it asks for OpenAI."""
    persona = never_listens if page in doc_setups.STUBBORN else gives_up_when_refused
    with ScriptedServer(persona("fetch_invoice", {"invoice_id": "INV-2291"})) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "unused")
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        yield server


@pytest.mark.parametrize("page", [page for page in pages() if any(blocks(page))])
def test_the_blocks_of_a_page_run(page, folder, server):
    names = doc_setups.names(page, server)
    runner = Runner(names)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        for block in blocks(page):
            try:
                runner.run(block)
            except Exception as error:
                error.add_note(
                    f"in the block of {block}; what a page takes for granted is in tests/support/doc_setups.py"
                )
                raise
    finally:
        names.get("restore", lambda: None)()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        asyncio.set_event_loop(None)


def test_few_blocks_are_not_run():
    unrun = [(str(block), block.why_not) for page in pages() for block in blocks(page) if block.why_not]
    assert len(unrun) <= 4, unrun
