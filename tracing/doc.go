// Package tracing sends traces of http listeners to an OpenTelemetry collector, by OTLP over HTTP. It adds the section "tracing" to the
// configuration file. A program that imports it has it:
//
//	import _ "github.com/headpond/headpond/tracing"
//
// A request that is traced is a span of the gateway as a server, with the client's span as its parent if the client sends a traceparent
// field (W3C Trace Context), and a span as a client for each time that it was sent to an endpoint, which gets that span in traceparent.
// The attributes are those of OpenTelemetry's semantic conventions for HTTP. No attribute has a query or credentials.
//
// Sessions never wait for the collector: spans wait in a bounded queue, and those that find no room are lost and counted.
//
// config.go is the configuration, part.go the part of a gateway, exporter.go the way to the collector, spans.go makes spans of a trace, and
// report.go has the rows of the admin pages.
package tracing
