// Package tracing sends traces of http listeners to an OpenTelemetry collector, by OTLP over HTTP. It
// adds the section "tracing" to the configuration file. A program gets it by importing it:
//
//	import _ "github.com/headpond/headpond/tracing"
//
// A traced request is a span of the gateway as a server. Its parent is the client's span if the client
// sends a traceparent field (W3C Trace Context). Each attempt to send the request to an endpoint is a
// span of the gateway as a client, which the endpoint gets in traceparent. The attributes are those of
// OpenTelemetry's semantic conventions for HTTP. No attribute has a query or credentials.
//
// Sessions never wait for the collector. Spans wait in a bounded queue; spans that do not fit are
// dropped and counted.
//
// config.go has the configuration, part.go the part of a gateway, exporter.go the connection to the
// collector, spans.go the spans of a trace, and report.go the rows of the admin pages.
package tracing
