package httpproxy_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/headpond/headpond/pool"
)

// TestPauseAfterAWait: an answer whose head has come after a rest may pause for as long as any other: the deadline of the
// head is over.
func TestPauseAfterAWait(t *testing.T) {
	for name, way := range restWays {
		t.Run(name, func(t *testing.T) {
			asked, begin, end := make(chan bool, 2), make(chan bool), make(chan bool, 1)
			u := way.serve(t, pool.Limits{}, func(w http.ResponseWriter, r *http.Request) {
				asked <- true
				if r.URL.Path == "/never" {
					<-r.Context().Done()
					return
				}
				<-begin
				_ = http.NewResponseController(w).Flush()
				select {
				case <-end:
					_, _ = io.WriteString(w, "content")
				case <-r.Context().Done():
				}
			})
			cfg := routeTo(u)
			cfg.Routes[0].ResponseTimeout = 2 * checkInterval
			cfg, client := way.client(t, cfg)
			p := startProxy(t, cfg)
			rest := rested(t, way)
			ask := func(path string) (answers chan string) {
				answers = make(chan string, 1)
				go func() {
					resp, err := client.Get(p.url + path)
					if err != nil {
						answers <- err.Error()
						return
					}
					defer resp.Body.Close()
					body, err := io.ReadAll(resp.Body)
					answers <- fmt.Sprint(resp.StatusCode, " ", string(body), " ", err)
				}()
				return answers
			}
			paused := ask("")
			<-asked
			rest()
			begin <- true
			if got := <-ask("/never"); !strings.HasPrefix(got, "504") { // later than the deadline of the first answer's head
				t.Errorf("without an answer the client gets %q", got)
			}
			end <- true
			if got := <-paused; got != "200 content <nil>" {
				t.Errorf("the client gets %q", got)
			}
		})
	}
}
