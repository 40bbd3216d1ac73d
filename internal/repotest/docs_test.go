package repotest_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	mdLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	mdHeading = regexp.MustCompile(`(?m)^#+ +(.+?) *$`)
	mdFence   = regexp.MustCompile("(?ms)^```.*?^```[ \t]*$")
	slugDrop  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// markdown returns the text of every document, by path.
func markdown(t *testing.T) map[string]string {
	t.Helper()
	top := root(t)
	docs := map[string]string{}
	walk(t, func(rel string) {
		if path.Ext(rel) != ".md" {
			return
		}
		data, err := os.ReadFile(filepath.Join(top, rel))
		if err != nil {
			t.Fatal(err)
		}
		docs[rel] = string(data)
	})
	return docs
}

func TestDocumentsExist(t *testing.T) {
	for _, name := range []string{
		"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Makefile", ".golangci.yml", ".ci/run",
		"docs/README.md", "docs/tcp.md", "docs/http.md", "docs/postgres.md", "docs/sqlite.md", "docs/embedding.md", "docs/runbook.md",
	} {
		if !exists(filepath.Join(root(t), name)) {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestLinksLeadSomewhere(t *testing.T) {
	docs := markdown(t)
	for name, text := range docs {
		for _, m := range mdLink.FindAllStringSubmatch(mdFence.ReplaceAllString(text, ""), -1) {
			target := m[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(target, "#")
			to := name
			if file != "" {
				to = path.Join(path.Dir(name), file)
			}
			if !exists(filepath.Join(root(t), to)) {
				t.Errorf("%s links to %s, which does not exist", name, target)
				continue
			}
			if anchor != "" && !anchors(docs[to])[anchor] {
				t.Errorf("%s links to %s, but %s has no such heading", name, target, to)
			}
		}
	}
}

// anchors returns the names GitHub gives a document's headings.
func anchors(text string) map[string]bool {
	names := map[string]bool{}
	for _, m := range mdHeading.FindAllStringSubmatch(mdFence.ReplaceAllString(text, ""), -1) {
		slug := slugDrop.ReplaceAllString(strings.ToLower(m[1]), "")
		names[strings.ReplaceAll(slug, " ", "-")] = true
	}
	return names
}

// TestArchitectureIsOfThisTree compares the maps in ARCHITECTURE.md and TestImportDirection with the existing
// directories.
func TestArchitectureIsOfThisTree(t *testing.T) {
	mapped := architecture(t)
	named := slices.Concat(mapped, testOnly)
	for _, l := range layers {
		named = append(named, l.dir)
	}
	for _, dir := range named {
		if !exists(filepath.Join(root(t), dir)) {
			t.Errorf("ARCHITECTURE.md or internal/repotest has %s, which does not exist", dir)
		}
	}
	for dir := range packages(t) {
		found := slices.ContainsFunc(mapped, func(m string) bool { return m != "internal" && below(dir, m) })
		if !found {
			t.Errorf("the map of ARCHITECTURE.md lacks %s", dir)
		}
	}
}

// architecture returns the directories in the map of ARCHITECTURE.md, including those of internal.
func architecture(t *testing.T) (dirs []string) {
	_, table, _ := strings.Cut(markdown(t)["ARCHITECTURE.md"], "## The map")
	table, _, _ = strings.Cut(table, "\n## ")
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		first := ""
		for _, m := range mdCode.FindAllStringSubmatch(cells[1], -1) {
			dir := strings.TrimSuffix(m[1], "/")
			if first == "" {
				first = dir
			} else if !exists(filepath.Join(root(t), dir)) {
				dir = path.Join(path.Dir(first), dir) // `pool/tcppool/`, `httppool/`
			}
			dirs = append(dirs, dir)
		}
		if first != "internal" {
			continue
		}
		for _, m := range mdCode.FindAllStringSubmatch(cells[2], -1) {
			dirs = append(dirs, "internal/"+m[1])
		}
	}
	return dirs
}
