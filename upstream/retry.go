package upstream

// Retry has the tenant's pools forget failed opens, because their cause may be gone: see pool.Pool.Retry.
func (t *Tenant[T]) Retry() {
	t.up.tenancy.Lock()
	all := t.all
	t.up.tenancy.Unlock()
	for _, s := range all {
		s.pool.Retry()
	}
}
