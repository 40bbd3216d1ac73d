package pgwire

import (
	"crypto/md5" //nolint:gosec // the protocol's md5 method is defined with it
	"crypto/subtle"
	"encoding/hex"
	"strings"
)

// MD5Secret returns the form in which PostgreSQL stores a password for the md5 method:
// "md5" and the hex digest of password and user.
func MD5Secret(user, password string) string {
	sum := md5.Sum([]byte(password + user)) //nolint:gosec // see import
	return "md5" + hex.EncodeToString(sum[:])
}

// IsMD5Secret reports whether a stored secret has the form MD5Secret returns.
func IsMD5Secret(secret string) bool {
	digest, ok := strings.CutPrefix(secret, "md5")
	if !ok || len(digest) != 2*md5.Size {
		return false
	}
	_, err := hex.DecodeString(digest)
	return err == nil
}

// MD5Response returns a client's answer to an md5 request with a salt. secret is the form MD5Secret
// returns.
func MD5Response(secret string, salt [4]byte) string {
	sum := md5.Sum(append([]byte(strings.TrimPrefix(secret, "md5")), salt[:]...)) //nolint:gosec // see import
	return "md5" + hex.EncodeToString(sum[:])
}

// VerifyMD5 compares a client's answer with the one expected, in constant time.
func VerifyMD5(secret string, salt [4]byte, response string) bool {
	return subtle.ConstantTimeCompare([]byte(MD5Response(secret, salt)), []byte(response)) == 1
}
