package demo_test

import (
	"fmt"
	"log/slog"

	"github.com/headpond/headpond/gateway/demo"
)

func Example() {
	d, err := demo.Start(demo.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	for _, l := range d.Config.Listeners {
		fmt.Println(l.Protocol, l.Listen)
	}
	// Output:
	// postgres 127.0.0.1:6432
	// http 127.0.0.1:8080
	// tcp 127.0.0.1:7000
}
