"""pgcli: all that it reads for its completion, without an error, and a session at a terminal with a query, \\d and an error.

Arguments: host, port, database, user, a directory for its files.
"""

import os
import pty
import select
import sys
import time

host, port, database, user, directory = sys.argv[1:]
os.environ.update(HOME=directory, XDG_CONFIG_HOME=directory, PGSSLMODE="disable", TERM="dumb", PROMPT_TOOLKIT_NO_CPR="1", PAGER="cat", COLUMNS="200")

from pgcli.completion_refresher import CompletionRefresher
from pgcli.pgcompleter import PGCompleter
from pgcli.pgexecute import PGExecute
from pgspecial.main import PGSpecial


def refresh():
    executor = PGExecute(database=database, user=user, host=host, port=port)
    list(executor.run("create table author (id serial primary key, name varchar(20) not null unique);"
                      "create table post (id serial primary key, author int references author (id), title text default 'x');"
                      "create view titles as select title from post"))
    completer = PGCompleter(settings={"casing_file": os.path.join(directory, "casing"), "generate_casing_file": True}, pgspecial=PGSpecial())
    for name, read in CompletionRefresher.refreshers.items():
        read(completer, executor)  # pgcli runs them on a thread, where an error is lost
    metadata = completer.dbmetadata
    assert set(metadata["tables"]["public"]) == {"author", "post"}, metadata["tables"]
    assert set(metadata["views"]["public"]) == {"titles"}, metadata["views"]
    assert [c.datatype for c in metadata["tables"]["public"]["author"].values()] == ["integer", "character varying"], metadata["tables"]
    keys = metadata["tables"]["public"]["post"]["author"].foreignkeys
    assert [(k.parenttable, k.parentcolumn) for k in keys] == [("author", "id")], keys
    assert executor.view_definition("titles").endswith("select title from post"), executor.view_definition("titles")
    special = PGSpecial()
    for command in r"\d \d+ \d+:author \d:post \dt+ \dv+ \di \ds \dm \dn \du \l+ \df \dT \dx \dp \db \dD \dE".split():
        list(executor.run(command.replace(":", " "), special))


class Terminal:
    """pgcli behind a pseudo-terminal."""

    def __init__(self):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(sys.executable, [sys.executable, "-c", "import pgcli.main; pgcli.main.cli()", "--less-chatty", "--pgclirc",
                                      os.path.join(directory, "pgclirc"), "-h", host, "-p", port, "-U", user, "-d", database])
        self.text = ""

    def expect(self, *wanted):
        """reads until all of these have come, and forgets what has been read."""
        end = time.monotonic() + 60
        while not all(w in self.text for w in wanted):
            assert time.monotonic() < end, f"no {wanted} in {self.text!r}"
            if select.select([self.fd], [], [], 1)[0]:
                self.text += os.read(self.fd, 65536).decode(errors="replace")
        self.text = ""

    def type(self, line):
        os.write(self.fd, line.encode() + b"\r")


def session():
    with open(os.path.join(directory, "pgclirc"), "w") as f:
        f.write("[main]\nenable_pager = False\nprompt = 'ready> '\nmulti_line = False\nsyntax_style = bw\n")
    terminal = Terminal()
    terminal.expect("ready> ")
    terminal.type("insert into author (name) values ('Ada'), ('Grace') returning id + 40 as number, name;")
    terminal.expect("41", "Ada", "42", "Grace", "INSERT 0 2")
    terminal.type("select nobody from author;")
    terminal.expect("no such column")
    terminal.type("\\d post")
    terminal.expect("post_pkey", "PRIMARY KEY", "post_author_fkey", "FOREIGN KEY (author) REFERENCES author(id)")
    terminal.type("exit")
    assert os.waitpid(terminal.pid, 0)[1] == 0


refresh()
session()
print("ok")
