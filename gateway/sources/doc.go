// Package sources has the sources of endpoints of every gateway: the DNS, a file, and Kubernetes.
// Importing it registers them. A package with another source registers it in its init function:
//
//	func init() {
//		config.RegisterSource(config.SourceKind{
//			Name: "registry", Section: &Registry{},
//			New: func(u *config.Upstream) (upstream.Source, error) { return watch(config.DiscoverAs[Registry](u)) },
//		})
//	}
package sources
