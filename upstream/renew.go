package upstream

// Renew makes the tenant's pools replace their connections; see pool.Pool.Renew.
func (t *Tenant[T]) Renew() {
	t.up.tenancy.Lock()
	all := t.all
	t.up.tenancy.Unlock()
	for _, s := range all {
		s.pool.Renew()
	}
}

// Expire closes connections early, those for which of returns true: see pool.Pool.Expire.
func (t *Tenant[T]) Expire(of func(T) bool) (expired, others int) {
	t.up.tenancy.Lock()
	all := t.all
	t.up.tenancy.Unlock()
	for _, s := range all {
		n, more := s.pool.Expire(of)
		expired, others = expired+n, others+more
	}
	return expired, others
}
