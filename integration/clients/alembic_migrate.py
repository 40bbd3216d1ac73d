"""Alembic: upgrade through revisions that create and alter tables, autogenerate, downgrade.

Arguments: the URL of the database, an empty directory.
"""

import pathlib
import sys

import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext

ENV = """
from alembic import context
from sqlalchemy import create_engine
with create_engine(context.config.get_main_option("sqlalchemy.url")).connect() as connection:
    context.configure(connection=connection, target_metadata=None)
    with context.begin_transaction():
        context.run_migrations()
"""

FIRST = """
import sqlalchemy as sa
from alembic import op
revision, down_revision = "1", None
def upgrade():
    op.create_table("account",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(50), nullable=False),
        sa.Column("description", sa.Unicode(200)),
        sa.Column("created", sa.DateTime, server_default=sa.func.now(), nullable=False))
    op.create_index("account_created", "account", ["created"])
def downgrade():
    op.drop_index("account_created")
    op.drop_table("account")
"""

SECOND = """
import sqlalchemy as sa
from alembic import op
revision, down_revision = "2", "1"
def upgrade():
    op.add_column("account", sa.Column("last_seen", sa.DateTime))
    op.alter_column("account", "description", new_column_name="note")
    op.create_unique_constraint("account_name_key", "account", ["name"])
    op.bulk_insert(sa.table("account", sa.column("id", sa.Integer), sa.column("name", sa.String)),
        [{"id": 1, "name": "ada"}, {"id": 2, "name": "bob"}])
def downgrade():
    op.drop_constraint("account_name_key", "account", type_="unique")
    op.alter_column("account", "note", new_column_name="description")
    op.drop_column("account", "last_seen")
"""

url, directory = sys.argv[1], pathlib.Path(sys.argv[2])
(directory / "versions").mkdir()
(directory / "env.py").write_text(ENV)
(directory / "script.py.mako").write_text("")
(directory / "versions" / "1.py").write_text(FIRST)
(directory / "versions" / "2.py").write_text(SECOND)
config = Config()
config.set_main_option("script_location", str(directory))
config.set_main_option("sqlalchemy.url", url)

command.upgrade(config, "head")
command.current(config)
engine = sa.create_engine(url)
with engine.connect() as connection:
    assert connection.execute(sa.text("select version_num from alembic_version")).scalar() == "2"
    assert connection.execute(sa.text("select name, note, created is not null from account order by id")).all() == [
        ("ada", None, True), ("bob", None, True)]
    try:
        connection.execute(sa.text("insert into account (name) values ('ada')"))
        raise AssertionError("the unique constraint does not hold")
    except sa.exc.IntegrityError:
        connection.rollback()
    metadata = sa.MetaData()
    sa.Table("account", metadata,
             sa.Column("id", sa.Integer, primary_key=True), sa.Column("name", sa.String(50), nullable=False),
             sa.Column("note", sa.Unicode(200)), sa.Column("created", sa.DateTime, nullable=False),
             sa.Column("last_seen", sa.DateTime), sa.Column("extra", sa.Integer),
             sa.Index("account_created", "created"), sa.UniqueConstraint("name", name="account_name_key"))
    differences = [d[0] for d in compare_metadata(MigrationContext.configure(connection), metadata)]
    assert differences == ["add_column"], differences
command.downgrade(config, "base")
with engine.connect() as connection:
    assert sa.inspect(connection).get_table_names() == ["alembic_version"]
print("ok")
