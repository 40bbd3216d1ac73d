package listener_test

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/headpond/headpond/listener"
)

// address returns the n-th of many addresses, alternately IPv4 and IPv6.
func address(n uint32) net.Addr {
	ip := make(net.IP, net.IPv6len)
	ip[0] = 0x20
	binary.BigEndian.PutUint32(ip[2:], n)
	if n%2 == 0 {
		ip = make(net.IP, net.IPv4len)
		binary.BigEndian.PutUint32(ip, n)
	}
	return &net.TCPAddr{IP: ip, Port: int(n % 60000)}
}

// bucket is a leaky bucket of one source, the meaning of a Rate.
type bucket struct{ level, at time.Duration }

func (b *bucket) take(r listener.Rate, now time.Duration) bool {
	step := r.Per / time.Duration(r.Connections)
	b.level, b.at = max(b.level-(now-b.at), 0), now
	if b.level+step > r.Per {
		return false
	}
	b.level += step
	return true
}

// TestRateAgainstModel compares random connections of several sources over a long time with a bucket for each.
func TestRateAgainstModel(t *testing.T) {
	for _, rate := range []listener.Rate{{1, time.Second}, {3, 3 * time.Second}, {20, time.Second}, {100, time.Minute}} {
		random := rand.New(rand.NewPCG(7, uint64(rate.Connections)))
		var s listener.Sources
		model := make([]bucket, 6)
		now, refused := time.Duration(0), 0
		for i := range 50_000 {
			now += time.Duration(random.Int64N(int64(rate.Per) / int64(rate.Connections) / 10))
			if random.IntN(1000) == 0 {
				now += time.Duration(random.Int64N(int64(3 * rate.Per)))
			}
			n := uint32(random.IntN(len(model)))
			err := s.Admit(address(n), 0, rate, now)
			want := model[n].take(rate, now)
			if want != (err == nil) || err != nil && !errors.Is(err, listener.ErrSourceRate) {
				t.Fatalf("%+v, connection %d of source %d at %v: %v, want admitted %v", rate, i, n, now, err, want)
			}
			if err != nil {
				refused++
			}
		}
		if refused == 0 {
			t.Errorf("%+v: nothing was refused", rate)
		}
	}
}

// TestFloodOfSources: at most MaxSources are remembered, and none without a connection is counted.
func TestFloodOfSources(t *testing.T) {
	var s listener.Sources
	rate := listener.Rate{Connections: 5, Per: time.Hour}
	for n := range uint32(4 * listener.MaxSources) {
		if err := s.Admit(address(n), 1, rate, time.Duration(n)); err != nil {
			t.Fatalf("source %d: %v", n, err)
		}
		s.Release(address(n))
		if rates, open := s.Known(); rates > listener.MaxSources || open != 0 {
			t.Fatalf("after %d sources: %d rates and %d counts are known", n+1, rates, open)
		}
	}
}

// TestSourcesOfIPv6: IPv6 sources are networks, because a client has a whole network of addresses.
func TestSourcesOfIPv6(t *testing.T) {
	at := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip)} }
	var s listener.Sources
	for _, step := range []struct {
		ip   string
		want error
	}{
		{"2001:db8::1", nil}, {"2001:db8::2", listener.ErrSourceFull}, {"2001:db8:0:1::2", nil}, {"10.0.0.1", nil},
		{"::ffff:10.0.0.1", listener.ErrSourceFull}, {"10.0.0.2", nil},
	} {
		if err := s.Admit(at(step.ip), 1, listener.Rate{}, 0); !errors.Is(err, step.want) || (err == nil) != (step.want == nil) {
			t.Errorf("%s: %v, want %v", step.ip, err, step.want)
		}
	}
}

func BenchmarkSource(b *testing.B) {
	var s listener.Sources
	client := address(2)
	b.ReportAllocs()
	for i := range b.N {
		if s.Admit(client, 10, listener.Rate{Connections: 10, Per: time.Second}, time.Duration(i)*time.Second) == nil {
			s.Release(client)
		}
	}
}

// TestForesee: what is foreseen is what happens, and foreseeing counts refusals only.
func TestForesee(t *testing.T) {
	s, err := listener.New(listener.Config{
		Name: "test", Protocol: "tcp", Logger: slog.New(slog.DiscardHandler), Deny: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
		ConnectionRate: listener.Rate{Connections: 2, Per: time.Hour},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	from := func(ip string) net.Addr { return &net.UDPAddr{IP: net.ParseIP(ip), Port: 1} }
	for _, c := range []struct {
		ip      string
		pending int
		want    error
	}{
		{"192.0.2.1", 0, listener.ErrDenied}, {"::ffff:192.0.2.2", 0, listener.ErrDenied},
		{"198.51.100.1", 0, nil}, {"198.51.100.1", 0, nil}, {"198.51.100.1", 1, nil}, {"198.51.100.1", 2, listener.ErrSourceRate},
		{"2001:db8::1", 1, nil}, {"2001:db8::2", 3, listener.ErrSourceRate},
	} {
		if err := s.Foresee(from(c.ip), c.pending); !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
			t.Errorf("%s after %d: %v, want %v", c.ip, c.pending, err, c.want)
		}
	}
	if st := s.Stats(); st.Rejected != 4 || st.Accepted != 4 || st.Errors[listener.ReasonDenied] != 2 || st.Errors[listener.ReasonSourceRate] != 2 {
		t.Errorf("rejected %d of %d, %v", st.Rejected, st.Accepted, st.Errors)
	}
}
