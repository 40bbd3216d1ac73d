// Package sources has the ways to find endpoints that every gateway knows: in
// the DNS, in a file, and in Kubernetes. Importing it registers them, as a package
// with another way would do from an init function of its own:
//
//	func init() {
//		config.RegisterSource(config.SourceKind{
//			Name: "registry", Section: &Registry{},
//			New: func(u *config.Upstream) (upstream.Source, error) { return watch(config.DiscoverAs[Registry](u)) },
//		})
//	}
package sources
