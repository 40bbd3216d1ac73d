package upstream

// Renew has the tenant's pools replace what they have: see pool.Pool.Renew.
func (t *Tenant[T]) Renew() {
	t.up.tenancy.Lock()
	all := t.all
	t.up.tenancy.Unlock()
	for _, s := range all {
		s.pool.Renew()
	}
}
