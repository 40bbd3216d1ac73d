module github.com/headpond/headpond/http3

go 1.27.2

// The core module comes from go.work: it is tested as it is here.
require github.com/quic-go/quic-go v0.64.1

require (
	github.com/quic-go/qpack v0.6.0 // indirect
	golang.org/x/crypto v0.54.0 // indirect
	golang.org/x/net v0.56.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.40.0 // indirect
)
