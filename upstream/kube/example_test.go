package kube_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/headpond/headpond/upstream"
	"github.com/headpond/headpond/upstream/kube"
)

// The endpoints of a Service are its ready ones, and behind them those that are about to stop.
func Example() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { // a stand-in for an API server
		_, _ = fmt.Fprint(w, `{"metadata": {"resourceVersion": "1"}, "items": [{"ports": [{"port": 8080}], "endpoints": [
			{"addresses": ["10.0.0.2"], "conditions": {"ready": true}, "zone": "a"},
			{"addresses": ["10.0.0.1"], "conditions": {"ready": false, "serving": true, "terminating": true}, "zone": "b"}]}]}`)
	}))
	defer server.Close()

	source, err := kube.New(kube.Config{Service: "prod/web", Server: server.URL})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	source.Watch(ctx, func(set []upstream.Endpoint, err error) error { // an Upstream calls this
		for _, e := range set {
			text, _ := json.Marshal(e)
			fmt.Println(string(text))
		}
		cancel()
		return err
	})
	// Output:
	// {"Address":"10.0.0.1:8080","Weight":0,"Priority":2,"Zone":"b","Metadata":{"state":"stopping"}}
	// {"Address":"10.0.0.2:8080","Weight":0,"Priority":0,"Zone":"a","Metadata":null}
}
