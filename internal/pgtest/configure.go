package pgtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/headpond/headpond/internal/certs"
)

// configure writes the settings, pg_hba.conf and the certificate.
func (c *Cluster) configure() error {
	settings := [][2]string{
		{"listen_addresses", "127.0.0.1"},
		{"unix_socket_directories", c.SocketDir()},
		// A test's data need not survive a power cut.
		{"fsync", "off"},
		{"synchronous_commit", "off"},
		{"full_page_writes", "off"},
		{"wal_level", "minimal"},
		{"max_wal_senders", "0"},
		{"shared_buffers", "32MB"},
		{"max_connections", "100"},
		// In files of the data directory: a killed server leaves what it has in /dev/shm.
		{"dynamic_shared_memory_type", "mmap"},
		{"lc_messages", "C"},
		{"log_line_prefix", "%m [%p] %q%u@%d "},
	}
	if c.opts.auth == MD5 {
		settings = append(settings, [2]string{"password_encryption", "md5"})
	} else {
		settings = append(settings, [2]string{"password_encryption", "scram-sha-256"})
	}
	if c.opts.tls {
		if err := c.writeCertificate(); err != nil {
			return err
		}
		settings = append(settings, [2]string{"ssl", "on"})
	}
	more, err := c.follows()
	if err != nil {
		return err
	}
	settings = append(settings, more...)
	var conf strings.Builder
	for _, s := range append(settings, c.opts.settings...) { // the last one wins
		fmt.Fprintf(&conf, "%s = '%s'\n", s[0], strings.ReplaceAll(s[1], "'", "''"))
	}
	if err := c.write("postgresql.auto.conf", conf.String()); err != nil {
		return err
	}
	hba := slices.Concat(c.opts.hba, []string{"local all all trust", "host all all 127.0.0.1/32 " + string(c.opts.auth), ""})
	return c.write("pg_hba.conf", strings.Join(hba, "\n"))
}

// write puts a file into the data directory, readable by the server alone.
func (c *Cluster) write(name, content string) error {
	path := filepath.Join(c.data(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return err
	}
	return c.as.chown(path)
}

// writeCertificate makes server.crt and server.key, where the server looks for them by default.
func (c *Cluster) writeCertificate() error {
	cert, key := certs.PEM(certs.New().Certificate)
	if err := c.write("server.crt", string(cert)); err != nil {
		return err
	}
	return c.write("server.key", string(key))
}
