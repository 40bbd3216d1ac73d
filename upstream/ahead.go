package upstream

// BeginWait counts a caller that waits for something else before it acquires, as if it waited at a pool: Limits.MaxWaiters
// bounds both together, and Stats and Status show it. EndWait must follow, before the acquire. BeginWait reports false, and
// counts nothing, if too many wait.
//
// The waits for a role and for the first report of a Source are counted like that.
func (t *Tenant[T]) BeginWait() bool {
	most := int64(t.up.set.Load().maxWaiters)
	if most != 0 && t.full() {
		return false
	}
	if n := t.ahead.Add(1); most != 0 && n > max(most, 0) {
		t.ahead.Add(-1)
		return false
	}
	return true
}

// EndWait ends what BeginWait has begun.
func (t *Tenant[T]) EndWait() { t.ahead.Add(-1) }

// full reports whether each of the tenant's pools has more waiters than it may have.
func (t *Tenant[T]) full() bool {
	some := false
	for _, s := range *t.sites.Load() {
		if s.pool == nil {
			continue
		}
		if some = true; !s.pool.Crowded() {
			return false
		}
	}
	return some
}

// ahead is how many callers of all tenants wait before they acquire.
func (u *Upstream[T]) ahead() int {
	n := u.own.ahead.Load()
	u.tenancy.Lock()
	defer u.tenancy.Unlock()
	for _, t := range u.tenants {
		n += t.ahead.Load()
	}
	return int(n)
}
