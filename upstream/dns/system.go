package dns

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	wire "github.com/miekg/dns"
)

// maxFileBytes bounds the system's files.
const maxFileBytes = 1 << 20

// readFile returns the content of a file; a missing file is empty.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxFileBytes))
}

// errNoServers is the error if no server is known.
var errNoServers = errors.New("no DNS server is known: name one in \"servers\", or in /etc/resolv.conf")

// system reads resolv.conf: the servers to ask, in order, and how names are
// completed.
func (s *Source) system() (*wire.ClientConfig, error) {
	data, err := readFile(s.cfg.ResolvConf)
	if err != nil {
		return nil, err
	}
	conf, err := wire.ClientConfigFromReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	servers := s.cfg.Servers
	if servers == nil {
		for _, server := range conf.Servers {
			if address, err := ServerAddress(server); err == nil {
				servers = append(servers, address)
			}
		}
	}
	if conf.Servers = servers; len(servers) == 0 {
		return nil, errNoServers
	}
	return conf, nil
}

// hosts returns the addresses that the hosts file has for a name.
func (s *Source) hosts(name string) (addrs []netip.Addr, err error) {
	data, err := readFile(s.cfg.Hosts)
	if err != nil {
		return nil, err
	}
	name = strings.TrimSuffix(name, ".")
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxFileBytes)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		addr, err := netip.ParseAddr(fields[0])
		if err != nil {
			continue
		}
		for _, n := range fields[1:] {
			if strings.EqualFold(n, name) {
				addrs = append(addrs, addr.Unmap())
				break
			}
		}
	}
	return addrs, nil
}
