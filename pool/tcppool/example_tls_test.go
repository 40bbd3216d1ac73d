//go:build unix

package tcppool_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http/httptest"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/tcppool"
)

// With TLS connections are kept with the handshake behind them.
func Example_tls() {
	certificate := httptest.NewTLSServer(nil) // for its certificate
	defer certificate.Close()
	roots := x509.NewCertPool()
	roots.AddCert(certificate.Certificate())
	ln, err := tls.Listen("tcp", "127.0.0.1:0", certificate.TLS)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer ln.Close()
	go func() { // an echo server
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()

	d, err := tcppool.New(tcppool.Config{
		TLS:    &tls.Config{RootCAs: roots},
		Limits: &pool.Limits{MaxSize: 4},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	for range 2 {
		c, err := d.Get(context.Background(), "tcp", ln.Addr().String())
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Fprintln(c, "ping")
		answer, err := bufio.NewReader(c).ReadString('\n')
		fmt.Printf("%q %v\n", answer, err)
		c.Release() // all was answered and read
	}
	fmt.Println("opened", d.Stats()[0].Opened)
	// Output:
	// "ping\n" <nil>
	// "ping\n" <nil>
	// opened 1
}
