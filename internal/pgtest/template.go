package pgtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// templateAge is the age at which a template is removed. Nothing copies one that is two days old. Cleaners of temporary
// directories remove single files after ten days or more.
const templateAge = 48 * time.Hour

// superuser and password are the cluster's owner role. It is a test server on loopback.
const (
	superuser = "postgres"
	password  = "pgtest-superuser"
)

// template returns a data directory made by initdb for this server and account, and makes it if there is none from
// today. Several processes may make one at the same time. The last step is a rename, which succeeds only once, so that
// a directory with that name is always complete.
func template(s server, as account) (string, error) {
	prefix := filepath.Join(tempDir(), fmt.Sprintf("headpond-pgtest-%s-%d-", s.version, as.uid))
	dir := prefix + time.Now().UTC().Format(time.DateOnly)
	if kept(dir, as) {
		return dir, nil
	}
	work, err := as.mkdir("hp-initdb-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }()
	data := filepath.Join(work, "data")
	if err := initdb(s, as, work, data); err != nil {
		return "", err
	}
	if err := os.Rename(data, dir); err != nil && !kept(dir, as) {
		return "", fmt.Errorf("keep the template: %w", err)
	}
	removeOld(prefix)
	return dir, nil
}

// kept reports whether dir is a data directory made by this package.
func kept(dir string, as account) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 || !as.owns(info) {
		return false
	}
	_, err = os.Stat(filepath.Join(dir, "PG_VERSION"))
	return err == nil
}

// removeOld removes templates of earlier days. Errors are ignored: a directory that stays only takes space.
func removeOld(prefix string) {
	old, _ := filepath.Glob(prefix + "*")
	for _, dir := range old {
		if made, err := os.Stat(filepath.Join(dir, "PG_VERSION")); err == nil && time.Since(made.ModTime()) > templateAge {
			_ = os.RemoveAll(dir)
		}
	}
}

// initdb makes a data directory.
func initdb(s server, as account, work, data string) error {
	pwfile := filepath.Join(work, "password")
	if err := os.WriteFile(pwfile, []byte(password+"\n"), 0o600); err != nil {
		return err
	}
	if err := as.chown(pwfile); err != nil {
		return err
	}
	cmd := as.command(filepath.Join(s.bin, "initdb"), "--pgdata", data, "--username", superuser, "--pwfile", pwfile,
		"--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync", "--wal-segsize", "1")
	cmd.Dir = work
	cmd.Env = environment()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return nil
}

// copyTemplate copies the template to dst as the server's account, so that the server owns the copy.
func copyTemplate(src, dst string, as account) error {
	cmd := as.command("cp", "-R", src, dst)
	cmd.Dir = filepath.Dir(dst)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("copy the template: %w\n%s", err, out)
	}
	return nil
}

// environment is the environment of the server's programs: no PG*, English messages, UTC (initdb
// otherwise searches the time zone files for a match, which takes longer than the rest).
func environment() []string {
	env := []string{"TZ=UTC", "LC_ALL=C"}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PG") && !strings.HasPrefix(kv, "LC_") && !strings.HasPrefix(kv, "TZ=") {
			env = append(env, kv)
		}
	}
	return env
}

// tempDir is where clusters live: in shared memory, whose files cost less than a disk's, if there is enough of it. Else it
// is the system's temporary directory, unless its path is too long for the Unix sockets inside (107 bytes in all) or
// private to root.
func tempDir() string {
	if dir := memoryDir(); dir != "" {
		return dir
	}
	dir := os.TempDir()
	if info, err := os.Stat(dir); len(dir) > 60 || err != nil || info.Mode().Perm()&0o001 == 0 {
		return "/tmp"
	}
	return dir
}
