// Package hba has the rules by which PostgreSQL chooses how a client authenticates, pg_hba.conf, and the maps of user names,
// pg_ident.conf. It parses and matches, and does nothing else.
//
//	rules, err := hba.Parse("pg_hba.conf", text)
//	rule := rules.Find(&hba.Request{Local: true, Database: "shop", User: "ada"}) // nil = no rule matches
//
// The meaning is that of PostgreSQL 16. What cannot be decided without a server's catalogs or the DNS is an error, and so are
// methods that a gateway cannot do: roles by membership (+role, samerole, samegroup), host names, other files (@file,
// include), and gss, sspi, ident of TCP clients, pam, bsd, ldap and radius. A regular expression (after a slash) has Go's
// syntax as far as that means the same as PostgreSQL's; the rest is an error, such as back references and \m.
package hba
