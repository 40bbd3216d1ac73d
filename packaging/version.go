package main

import (
	"regexp"
	"strings"
	"time"
)

// described is the output of git describe after a tag: v0.1.0-12-g0123abc-dirty.
var described = regexp.MustCompile(`^v?(\d[0-9.]*)(?:-(rc|beta|alpha)\.?(\d+))?(?:-(\d+)-g([0-9a-f]+))?(-dirty)?$`)

// packageVersion makes a version that dpkg and rpm order rightly: of a commit after a tag newer than the tag's, of a candidate older
// than the release's, and without any tag older than every release.
func packageVersion(version string, at time.Time) string {
	m := described.FindStringSubmatch(version)
	if m == nil {
		return "0~" + at.Format("20060102.150405") + "." + safe.ReplaceAllString(version, ".")
	}
	v := m[1]
	if m[2] != "" {
		v += "~" + m[2] + m[3]
	}
	if m[4] != "" {
		v += "+" + m[4] + "." + m[5]
	}
	return v + strings.Replace(m[6], "-", "+", 1)
}

// safe matches what neither dpkg nor rpm take in a version.
var safe = regexp.MustCompile(`[^A-Za-z0-9.+~]`)
