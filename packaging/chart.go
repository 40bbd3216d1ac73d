package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// chartFolder is the Helm chart.
const chartFolder = top + "/deploy/helm/headpond"

// makeChart writes the archive that helm installs: the chart with the version, also as the tag of the image.
func makeChart(o options) error {
	list, err := folder(chartFolder)
	if err != nil {
		return err
	}
	chart := list[:0]
	for _, e := range list {
		if e.name == "ci/" || strings.HasPrefix(e.name, "ci/") { // values for tests
			continue
		}
		if e.name == "Chart.yaml" {
			e.text = versionLine.ReplaceAll(e.text, []byte("version: "+chartVersion(o.version)))
			e.text = appVersionLine.ReplaceAll(e.text, []byte(`appVersion: "`+imageTag(o.version)+`"`))
		}
		e.name = "headpond/" + e.name
		chart = append(chart, e)
	}
	archive, err := pack(chart, o.time)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, "headpond-chart-"+o.version+".tgz"), compressed(archive), 0o644) //nolint:gosec // public
}

// imageTag is the tag of the image of a version.
func imageTag(version string) string { return strings.TrimPrefix(version, "v") }

// chartVersion makes a version as Helm wants it, a semantic one. Without any tag it is older than every release.
func chartVersion(version string) string {
	m := described.FindStringSubmatch(version)
	if m == nil || !threeNumbers.MatchString(m[1]) {
		return "0.0.0-g" + notInSemver.ReplaceAllString(version, "-")
	}
	v := m[1]
	if m[2] != "" {
		v += "-" + m[2] + "." + m[3]
	}
	var build []string
	if m[4] != "" {
		build = append(build, m[4], "g"+m[5])
	}
	if m[6] != "" {
		build = append(build, "dirty")
	}
	if build != nil {
		v += "+" + strings.Join(build, ".")
	}
	return v
}

var (
	threeNumbers = regexp.MustCompile(`^(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}$`)
	notInSemver  = regexp.MustCompile(`[^A-Za-z0-9-]`)

	versionLine    = regexp.MustCompile(`(?m)^version: .*$`)
	appVersionLine = regexp.MustCompile(`(?m)^appVersion: .*$`)
)
