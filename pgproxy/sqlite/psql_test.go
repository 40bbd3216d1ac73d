package sqlite_test

import (
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// psql runs every command in one psql and returns the output of each.
func (s *server) psql(t *testing.T, commands []string) map[string]string {
	t.Helper()
	const marker = "-- next command --"
	args := []string{"-X", s.url("")}
	for _, c := range commands {
		args = append(args, "-c", c, "-c", `\echo `+marker)
	}
	out, err := exec.CommandContext(t.Context(), "psql", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("psql: %v (is package postgresql-client installed?)\n%s", err, out)
	}
	outputs := map[string]string{}
	for i, part := range strings.Split(string(out), marker) {
		if i < len(commands) {
			outputs[commands[i]] = part
		}
	}
	return outputs
}

func TestPsql(t *testing.T) {
	s := start(t)
	wanted := map[string][]string{
		`\d`:                         {"public | users | table | demo", "public | names | view"},
		`\dt`:                        {"users", "posts"},
		`\dt+`:                       {"users", "heap"},
		`\dv`:                        {"names | view"},
		`\di`:                        {"posts_author | index | demo  | posts", "posts_pkey | index | demo | posts", "users_name_key | index"},
		`\d users`:                   {`Table "public.users"`, "id     | integer", "name   | text", "not null", `"users_pkey" PRIMARY KEY, btree (id)`, `"users_name_key" UNIQUE CONSTRAINT, btree (name)`, "Check constraints:", `"users_age_check" CHECK ((age > 0))`, "seen   | timestamp without time zone", "CURRENT_TIMESTAMP", `TABLE "posts" CONSTRAINT "posts_author_fkey"`},
		`\d+ posts`:                  {`"posts_author" btree (author)`, "FOREIGN KEY (author) REFERENCES users(id) ON DELETE CASCADE"},
		`\d users_pkey`:              {`Index "public.users_pkey"`, "id | integer", `primary key, btree, for table "public.users"`},
		`\d names`:                   {`View "public.names"`},
		`\d posts_author`:            {`Index "public.posts_author"`, "author"},
		`\d+ names`:                  {"View definition", "SELECT id, name"},
		`\l`:                         {"demo | demo  | UTF8"},
		`\du`:                        {"demo"},
		`\dn`:                        {"public | demo"},
		`\df`:                        {"(0 rows)"},
		`\dx`:                        {"(0 rows)"},
		`\dp`:                        {"public | users | table"},
		`\ds`:                        {"Did not find any relations"},
		`\conninfo`:                  {`database "demo" as user "demo"`},
		`select count(*) from users`: {"count", "2", "(1 row)"},
		`select 1; select 'a'`:       {"?column?"},
		`values (1, 'x')`:            {"1 | x"},
		`pragma table_info(posts)`:   {"author", "INTEGER"},
		`SELECT quote_ident(relname) FROM pg_class WHERE substring(pg_catalog.quote_ident(relname),1,3)='use' AND relkind = 'r'`: {"users", "(1 row)"}, // tab completion of a name
		`select quote_ident('A b') || quote_ident('select')`:                                                                     {`"A b""select"`},
		`show server_version`: {"15.0"},
		`select version(), current_user, current_database(), current_schema`:                                                {"PostgreSQL 15.0 compatible", "demo", "public"},
		`set application_name = 'x'; show application_name`:                                                                 {"x"},
		`select table_name, column_name, data_type, is_nullable from information_schema.columns where table_name = 'posts'`: {"author      | integer   | NO"},
		`select table_name from information_schema.tables where table_schema = 'public' order by 1`:                         {"names", "posts", "users"},
		`select "id" from "public"."users" join "pg_catalog"."pg_class" on relname = 'users' where "id" = 2`:                {"2", "(1 row)"},
		`insert into posts values (7, 1, E'two\nlines') returning id`:                                                       {"7", "INSERT 0 1"},
		`update users set age = 37 where id = 1`:                                                                            {"UPDATE 1"},
		`create table made (id serial primary key, at timestamp default now())`:                                             {"CREATE TABLE"},
		`explain query plan select * from users`:                                                                            {"SCAN users"},
	}
	outputs := s.psql(t, slices.Sorted(maps.Keys(wanted)))
	for command, want := range wanted {
		if strings.Contains(outputs[command], `\x`) {
			t.Errorf("psql -c %q shows bytes where a name belongs:\n%s", command, outputs[command])
		}
		for _, w := range want {
			if out := outputs[command]; !strings.Contains(words(out), words(w)) {
				t.Errorf("psql -c %q lacks %q:\n%s", command, w, out)
			}
		}
	}
}

// words replaces every run of blanks by one.
func words(s string) string { return strings.Join(strings.Fields(s), " ") }
