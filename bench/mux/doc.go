// Package mux compares Headpond's mux with a hand-framed connection, yamux, smux and the messaging
// study, in one process over loopback (WORKLOADS.md, W4).
//
//	cd bench && go test -run '^$' -bench . -count 10 ./mux
//
// raw is the floor: a header of eight bytes and the payload in one write, read through one buffer,
// no demultiplexing. study is the study's protocol: 45 bytes of header with a text UUID, one write
// per 64 KiB, five unbuffered reads.
package mux
