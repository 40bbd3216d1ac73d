// Package jwt verifies JSON Web Tokens (RFC 7519) of one issuer by the keys that it publishes (RFC 7517), as RFC 8725
// advises: only asymmetric algorithms, keys of the right kind for the algorithm, and claims that say who has made the
// token, for whom and until when. Signatures and keys are read by go-jose.
package jwt
