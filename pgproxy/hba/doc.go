// Package hba has the rules by which PostgreSQL chooses how a client authenticates, pg_hba.conf, and the maps of user names,
// pg_ident.conf. It parses and matches, and does nothing else.
//
//	rules, err := hba.Parse("pg_hba.conf", text, os.ReadFile)
//	rule := rules.Find(&hba.Request{Local: true, Database: "shop", User: "ada"}) // nil = no rule matches
//
// The meaning is that of PostgreSQL 16. Who is a member of a role (+role, samerole, samegroup) the caller has to know
// (Request.Member). What cannot be decided without the DNS is an error, and so are other files with rules (include), and methods
// that a gateway cannot do: gss, sspi, ident of TCP clients, pam, bsd, ldap and radius. A regular expression (after a slash) has
// Go's syntax as far as that means the same as PostgreSQL's; the rest is an error, such as back references and \m.
package hba
