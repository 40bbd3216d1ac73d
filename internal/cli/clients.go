package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/internal/top"
)

// maxColumns bounds the table of clients if its cells need more: it fits half a screen.
const maxColumns = 110

// ctlClients prints the matching sessions, up to the gateway's limit for one answer.
func ctlClients(e env, address string, query url.Values, asJSON bool) error {
	code, body, err := ask(address, http.MethodGet, "/api/v1/sessions?"+query.Encode())
	if err != nil {
		return err
	}
	var refused struct{ Error string }
	if code == http.StatusBadRequest && json.Unmarshal(body, &refused) == nil && refused.Error != "" {
		return errors.New(refused.Error)
	}
	if code != http.StatusOK {
		return unexpected(address, code, body)
	}
	if asJSON {
		_, err := e.stdout.Write(body)
		return err
	}
	var s admin.Sessions
	if err := json.Unmarshal(body, &s); err != nil {
		return fmt.Errorf("%s is not a gateway's admin page: %w", address, err)
	}
	if s.Matched == 0 {
		if err := checkNames(address, query); err != nil {
			return err
		}
	}
	printClients(e.stdout, s)
	return nil
}

// checkNames explains why no session matches: the gateway has no such listener or upstream.
func checkNames(address string, query url.Values) error {
	if query.Get("listener") == "" && query.Get("upstream") == "" {
		return nil
	}
	s, _, err := askStatus(address)
	if err != nil {
		return err
	}
	names := map[string][]string{}
	for _, l := range s.Listeners {
		names["listener"] = append(names["listener"], l.Name)
	}
	for _, u := range s.Upstreams {
		names["upstream"] = append(names["upstream"], u.Name)
	}
	for _, r := range s.Retiring {
		names[r.Kind] = append(names[r.Kind], r.Name)
	}
	for _, kind := range []string{"listener", "upstream"} {
		if name := query.Get(kind); name != "" && !slices.Contains(names[kind], name) {
			return fmt.Errorf("unknown %s %q; there are %s", kind, name, strings.Join(names[kind], ", "))
		}
	}
	return nil
}

// printClients writes a line for each session.
func printClients(w io.Writer, s admin.Sessions) {
	rows := [][]string{{"ID", "LISTENER", "CLIENT", "WHO", "STATE", "FOR", "HOLDS", "PID", "HELD"}}
	for _, c := range s.Sessions {
		pid, held := "", ""
		if c.ServerPID != 0 {
			pid = strconv.FormatUint(uint64(c.ServerPID), 10)
		}
		if c.HeldSince != nil {
			held = top.Age(c.HeldSeconds)
		}
		rows = append(rows, []string{c.ID, c.Listener, c.Client, c.Who(), c.Doing(), top.Age(c.StateSeconds), cmp.Or(c.Endpoint, "-"), cmp.Or(pid, "-"), cmp.Or(held, "-")})
	}
	const idColumn = 0 // the argument of ctl kill
	printRows(w, rows, maxColumns, idColumn, func(row int) string { return s.Sessions[row].Statement })
	if shown := len(s.Sessions); shown < s.Matched || s.Matched < s.Total {
		_, _ = fmt.Fprintf(w, "%d shown of %d that match, %d in all\n", shown, s.Matched, s.Total)
	}
}

// printRows writes a table that is at most width wide: it cuts the widest columns except column kept. A row's note, if
// any, is written below the row.
func printRows(w io.Writer, rows [][]string, width, kept int, note func(row int) string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i := range row {
			row[i] = strings.ReplaceAll(printable(row[i]), "\n", " ")
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	for total(widths) > width {
		widest := 1 - min(kept, 1)
		for i := range widths {
			if i != kept && widths[i] > widths[widest] {
				widest = i
			}
		}
		widths[widest]--
	}
	for i, row := range rows {
		var line strings.Builder
		for j, cell := range row {
			fmt.Fprintf(&line, "%-*s  ", widths[j], clip(cell, widths[j]))
		}
		_, _ = fmt.Fprintln(w, strings.TrimRight(line.String(), " "))
		if i == 0 {
			continue
		}
		if text := strings.Join(strings.Fields(printable(note(i-1))), " "); text != "" {
			_, _ = fmt.Fprintln(w, "  "+clip(text, width-2))
		}
	}
}

// total is the width of a table with two spaces between its columns.
func total(widths []int) int {
	sum := 2 * (len(widths) - 1)
	for _, w := range widths {
		sum += w
	}
	return sum
}

// clip cuts a text to n characters and marks the cut.
func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:max(n-1, 0)]) + "…"
}

// ctlKill ends sessions. It continues after an ID that does not exist.
func ctlKill(e env, address string, ids []string) error {
	var missing []string
	for _, id := range ids {
		err := kill(context.Background(), address, id)
		if refused, ok := errors.AsType[*refusal](err); ok && refused.code == http.StatusNotFound {
			missing = append(missing, id)
			continue
		}
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(e.stdout, "killed %s\n", id)
	}
	if len(missing) > 0 {
		why := "no such session"
		if slices.ContainsFunc(missing, func(id string) bool { return strings.Contains(id, "@") }) {
			why += ", or its process does not answer"
		}
		return fmt.Errorf("%s: %s", why, strings.Join(missing, " "))
	}
	return nil
}
