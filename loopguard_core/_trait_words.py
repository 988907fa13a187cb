"""Words in the names of tools, and what they say of a tool; see `_traits`."""

from __future__ import annotations

READ_WORDS = frozenset(
    """get gets read reads list lists ls search searches find finds fetch fetches lookup look query queries view
    views show shows describe check checks grep glob cat head tail retrieve inspect count scan browse select
    explain analyze analyse summarize summarise calculate compute evaluate validate verify test tests lint diff
    compare screenshot snapshot extract scrape crawl peek stat measure estimate load open download preview render
    think plan thought reason recall remember ask detect classify translate parse whoami info status history
    observe see watch monitor download capture examine review audit locate dump tree
    buscar consultar obtener leer listar mostrar verificar calcular rechercher chercher lister lire obtenir afficher
    verifier calculer suchen lesen holen anzeigen abrufen berechnen ler obter cercare leggere zoeken lezen
    suche busqueda busca recherche ricerca""".split()
)
MUTATION_WORDS = frozenset(
    """send sends create creates update updates delete deletes remove removes write writes edit edits insert inserts
    replace replaces patch put post save saves store stores set sets add adds append move moves rename merge
    commit push deploy pay pays charge refund transfer book cancel submit publish upload install uninstall apply
    approve reject assign close reopen archive mark tag label comment reply forward schedule reserve order buy
    sell purchase withdraw invite share grant revoke enable disable reset restart rollback revert undo drop
    truncate register subscribe unsubscribe notify message email mail sms tweet dm issue file escalate resolve
    provision scale migrate import record log charge modify change complete finish trigger spawn kill terminate
    start stop launch upgrade downgrade rewrite overwrite toggle lock unlock dim activate deactivate
    crear enviar actualizar borrar eliminar guardar publicar escribir
    creer envoyer supprimer publier ecrire enregistrer senden erstellen anlegen loeschen speichern schreiben buchen
    criar atualizar apagar salvar inviare""".split()
)
DEBUGGERS = frozenset("gdb lldb pdb debugger debug".split())
TAKING_WORDS = frozenset(
    "receive pop next dequeue pull take claim lease draw roll deal import step advance sample record guess".split()
)
"""Words for taking the next of many."""
SWITCHING_WORDS = frozenset("turn switch".split())
SWITCHED = frozenset("on off up down".split())
ENGLISH_COMMANDS = frozenset(
    """cat copy cut date del fg find head join kill less look make man more move open play read say set sleep sort split
    start stop tail talk tell test time top touch type wait watch write""".split()
)
"""Programs whose names are words that a game or a robot may be told, too."""
STARTING_WORDS = frozenset(
    """start launch run exec execute spawn trigger submit create begin deploy invoke queue enqueue schedule
    build""".split()
)
UI_WORDS = frozenset(
    """click tap press scroll swipe hover drag drop type fill key keypress keys navigate goto back forward next previous
    focus mouse""".split()
)
THINKING_WORDS = frozenset(
    """think thinking thought thoughts sequentialthinking reflect reflection reasoning ponder brainstorm""".split()
)
PLAN_WORDS = frozenset("plan plans todo todos checklist".split())
EDITING_WORDS = frozenset("replace edit write patch insert rewrite".split())
TEST_WORDS = frozenset("test tests pytest lint typecheck".split())
POLL_WORDS = frozenset("poll polls polling status progress health heartbeat".split())
STARTED = frozenset("run build deploy launch queue".split())
"""Words for starting something that are also names of what was started: `build_status` asks, it does not build."""
READING_ENDS = frozenset("search read get list fetch lookup find query view show".split())
FACT_WORDS = frozenset(
    """status state progress info list count details history log logs results result output version health summary
    stats metrics""".split()
)
SHELL_NAMES = frozenset(
    """bash sh shell zsh fish exec terminal powershell pwsh cmd console command run_command run_shell
    run_shell_command execute_command execute_shell shell_exec shell_command run_terminal_cmd run_in_terminal
    local_shell container_exec run_bash execute_bash terminal_run ssh ssh_exec run_terminal_command""".split()
)
CODE_NAMES = frozenset(
    """python execute run_python python_repl repl code code_interpreter jupyter execute_python ipython
    run_code""".split()
)
