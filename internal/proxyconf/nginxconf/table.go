package nginxconf

import (
	"slices"
	"strings"

	"github.com/headpond/headpond/internal/proxyconf"
)

// note is what becomes of a directive that has no handler.
type note struct {
	fate proxyconf.Fate
	text string
}

const (
	itself  = proxyconf.Itself
	differs = proxyconf.Differs
	missing = proxyconf.Missing
)

// handled are the directives that other files read, and report if they cannot carry them.
var handled = strings.Fields(`http stream server location upstream listen server_name return rewrite if proxy_pass grpc_pass proxy_set_header grpc_set_header add_header proxy_hide_header
	proxy_connect_timeout proxy_read_timeout grpc_connect_timeout grpc_read_timeout proxy_next_upstream proxy_next_upstream_tries client_max_body_size gzip gzip_types gzip_min_length
	ssl_certificate ssl_certificate_key ssl_client_certificate ssl_verify_client ssl_crl allow deny satisfy auth_basic auth_basic_user_file auth_request auth_request_set limit_req limit_req_zone limit_except internal set_real_ip_from real_ip_header proxy_redirect proxy_cookie_path proxy_cookie_domain proxy_cookie_flags ssl access_log default_type error_page proxy_intercept_errors
	proxy_ssl_verify proxy_ssl_trusted_certificate proxy_ssl_name proxy_ssl_certificate proxy_ssl_certificate_key proxy_timeout proxy_protocol ssl_preread proxy_ssl keepalive_timeout client_header_timeout`)

// notes are the others.
var notes = map[string]note{}

func init() {
	for fate, texts := range map[proxyconf.Fate]map[string]string{
		itself: {
			"systemd starts the gateway": "user daemon master_process pid lock_file",
			"loops follows the cores, and max_conns of each listener bounds connections": "worker_processes worker_connections worker_rlimit_nofile worker_cpu_affinity worker_priority worker_shutdown_timeout thread_pool events multi_accept use accept_mutex pcre_jit timer_resolution",
			"a matter of nginx itself":                                      "load_module include types types_hash_max_size types_hash_bucket_size server_names_hash_bucket_size server_names_hash_max_size variables_hash_max_size variables_hash_bucket_size map_hash_bucket_size map_hash_max_size server_tokens env debug_connection charset index autoindex source_charset log_not_found log_subrequest open_file_cache open_file_cache_valid open_file_cache_min_uses open_file_cache_errors sendfile sendfile_max_chunk tcp_nopush directio aio etag if_modified_since absolute_redirect port_in_redirect server_name_in_redirect proxy_headers_hash_max_size proxy_headers_hash_bucket_size limit_req_log_level limit_conn_log_level proxy_socket_keepalive",
			"wrong passwords are slow by themselves":                        "auth_delay",
			"headers of servers pass, unless response_headers removes them": "proxy_pass_header",
			"always, where it is safe":                                      "tcp_nodelay proxy_http_version keepalive_requests keepalive_disable proxy_ssl_session_reuse http2 http2_max_concurrent_streams chunked_transfer_encoding reset_timedout_connection lingering_close lingering_time lingering_timeout ssl_session_cache ssl_session_timeout ssl_session_tickets ssl_session_ticket_key ssl_prefer_server_ciphers ssl_buffer_size ssl_dhparam proxy_ssl_server_name proxy_ssl_protocols proxy_ssl_ciphers gzip_vary gzip_proxied gzip_comp_level gzip_http_version gzip_disable gzip_buffers gzip_static",
			"bodies are streamed, in bounded memory":                        "proxy_buffering proxy_request_buffering proxy_buffers proxy_buffer_size proxy_busy_buffers_size proxy_max_temp_file_size proxy_temp_path proxy_temp_file_write_size client_body_buffer_size client_body_temp_path fastcgi_temp_path uwsgi_temp_path scgi_temp_path client_body_in_file_only client_header_buffer_size output_buffers postpone_output grpc_buffer_size preread_buffer_size",
			"idle_timeout of a route bounds both sides":                     "proxy_send_timeout send_timeout client_body_timeout grpc_send_timeout",
			"the gateway looks names up as often as their answers say":      "resolver resolver_timeout",
		},
		differs: {
			"a head may have 64 KiB: http: {max_header_kib} of a listener":        "large_client_header_buffers",
			"the log goes to standard error: let systemd pass it on":              "error_log rewrite_log",
			"http: {access_log: {path: …, format: …}} of a listener has a format": "log_format",
			"fixed: a ClientHello has 10 s, and connections have no longest life": "preread_timeout ssl_handshake_timeout keepalive_time",
			"TLS 1.2 and 1.3, with the ciphers of Go's crypto/tls, always":        "ssl_protocols ssl_ciphers ssl_ecdh_curve ssl_conf_command ssl_stapling ssl_stapling_verify ssl_trusted_certificate ssl_verify_depth ssl_early_data ssl_alpn",
			"a route with root has no server; where that matters it is reported":  "root",
			"the client is the last address that is not one of trusted_proxies":   "real_ip_recursive",
			"clients that ask for another name get a certificate, and an answer":  "ssl_reject_handshake",
			"the numbers are on the admin page: admin: 127.0.0.1:9090":            "stub_status status_zone api",
			"paths are compared as they are decoded, without merging slashes":     "merge_slashes",
			"names of headers with other signs than letters, digits and - pass":   "underscores_in_headers ignore_invalid_headers",
		},
		missing: {
			"the gateway serves no files":                                                     "try_files alias autoindex_format  mp4 flv dav_methods random_index",
			"error_pages of a listener or route have texts and files":                         "recursive_error_pages",
			"max_connections_per_source of a listener bounds the connections of an address":   "limit_conn limit_conn_zone limit_conn_status",
			"clients that are over a limit get 429":                                           "limit_req_status limit_req_dry_run",
			"the gateway does not limit the rate of bytes":                                    "limit_rate limit_rate_after proxy_limit_rate proxy_download_rate proxy_upload_rate",
			"bodies of answers pass as they are":                                              "sub_filter sub_filter_once sub_filter_types ssi addition_types add_before_body add_after_body image_filter xslt_stylesheet",
			"values and conditions that use its variable are reported":                        "valid_referers secure_link secure_link_md5 secure_link_secret",
			"response_headers of a route sets Cache-Control to a fixed text":                  "expires",
			"the gateway has no filter of requests; requests that it refused are LET THROUGH": "modsecurity modsecurity_rules modsecurity_rules_file SecRulesEnabled js_access",
			"the server gets headers and body of the client":                                  "proxy_pass_request_headers proxy_pass_request_body",
			"the gateway names no visitors":                                                   "userid",
			"the gateway has no cache":                                                        "proxy_cache proxy_cache_path proxy_cache_valid proxy_cache_key proxy_cache_bypass proxy_no_cache proxy_cache_use_stale proxy_cache_lock proxy_cache_methods proxy_cache_min_uses proxy_cache_revalidate proxy_store slice",
			"the gateway speaks HTTP, and no FastCGI, uwsgi, SCGI and memcached":              "fastcgi_pass uwsgi_pass scgi_pass memcached_pass fastcgi_param fastcgi_index fastcgi_split_path_info uwsgi_param scgi_param fastcgi_read_timeout fastcgi_buffers fastcgi_buffer_size",
			"values and conditions that use the variable are reported":                        "geoip_country geoip_city split_clients js_import js_set perl_set",
			"mirror of a route names an upstream":                                             "mirror mirror_request_body",
			"HTTP/3 is a key of the listener: http: {http3: true}":                            "http3 quic_retry quic_gso http3_hq quic_host_key",
			"transparent: true of a tcp upstream connects from the client's address":          "proxy_bind",
			"send_proxy of a tcp listener has v1 and v2":                                      "proxy_protocol_version",
			"the gateway forwards no mail":                                                    "mail",
			"method and body pass as the client sent them":                                    "proxy_method proxy_set_body",
		},
	} {
		for text, names := range texts {
			for name := range strings.FieldsSeq(names) {
				notes[name] = note{fate, text}
			}
		}
	}
}

// report reports the directives of a block that no other part of the package reads.
func (c *converter) report(block *directive, _ string) {
	for _, d := range block.block {
		n, known := notes[d.name()]
		switch {
		case slices.Contains(handled, d.name()):
			continue
		case d.name() == "try_files" && named(block) != "":
			n = note{differs, "the gateway serves no files: all requests go to " + named(block)}
		case d.name() == "proxy_pass_request_body" && c.asks[block.words[len(block.words)-1]], known && strings.HasPrefix(d.name(), "proxy_pass_request_") && d.arg(1) == "on":
			n = note{itself, "as it is in the gateway"}
		case strings.HasPrefix(d.name(), "proxy_pass_request_"):
		case known && n.fate == missing && len(d.words) == 2 && (d.arg(1) == "off" || d.arg(1) == "0" && strings.HasPrefix(d.name(), "limit_rate")):
			n = note{itself, "it is off"}
		case !c.caches && (strings.HasPrefix(d.name(), "proxy_cache_") || d.name() == "proxy_no_cache"):
			n = note{itself, "nothing is cached without proxy_cache"}
		case d.name() == "set" || d.name() == "geo":
			continue // where the variable is used it is carried, or reported
		case strings.HasPrefix(d.name(), "auth_") && !known && !d.open:
			n = note{missing, "the gateway does not know this way to ask clients who they are: nobody may use what it protects until the route has basic_auth, bearer_auth or forward_auth"}
		case d.name() == "map" && d.arg(1) == "$http_upgrade":
			n = note{itself, "WebSockets and other upgrades pass, always"}
		case d.name() == "map" && d.arg(1) == "$ssl_preread_server_name":
			continue
		case d.name() == "map":
			continue // where the variable is used it is carried, or reported
		case d.name() == "break":
			continue // see stops
		case strings.Contains(d.name(), "_by_lua"):
			n = note{missing, "the gateway runs no Lua; requests that it refused are LET THROUGH"}
		case !known:
			n = note{missing, "this is not known to the importer; see whether a route, listener or upstream has an equal"}
		}
		c.out.Reports.Add(d.at, d.name(), n.fate, "%s", n.text)
	}
}
