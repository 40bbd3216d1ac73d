// Package forward measures workload W2 of WORKLOADS.md in one process: client, forwarder and server on the loopback.
//
//	go test -run '^$' -bench Forward -count 10 ./forward | benchstat -col /arm -
//
// Arms: "old" reads the whole body and dials for each request, as the study's old arm; "stdlib" is
// httputil.ReverseProxy over a shared http.Transport with 100 idle connections; "headpond" is httppool.Handler;
// "gateway" is httpproxy; "harness" is a handler that answers without a backend. Client and server are the same for all
// arms and account for most of the cost.
package forward
