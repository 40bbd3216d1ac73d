package fiber

// table finds the owner of a completion or an event. The generation tells a slot's present owner from earlier ones.
type table struct {
	slots []slot
	spare []uint32
}

type slot struct {
	owner      any
	generation uint32
}

func (t *table) put(owner any) uint32 {
	if n := len(t.spare); n > 0 {
		i := t.spare[n-1]
		t.spare = t.spare[:n-1]
		t.slots[i].owner = owner
		return i
	}
	t.slots = append(t.slots, slot{owner: owner})
	return uint32(len(t.slots) - 1)
}

func (t *table) generation(i uint32) uint32 { return t.slots[i].generation }

// get returns nil if the slot has another owner now.
func (t *table) get(i, generation uint32) any {
	if int(i) >= len(t.slots) || t.slots[i].generation != generation {
		return nil
	}
	return t.slots[i].owner
}

func (t *table) drop(i uint32) {
	t.slots[i].owner = nil
	t.slots[i].generation = (t.slots[i].generation + 1) & maxGeneration
	t.spare = append(t.spare, i)
}

func (t *table) each(fn func(owner any)) {
	for i := range t.slots {
		if owner := t.slots[i].owner; owner != nil {
			fn(owner)
		}
	}
}

// maxGeneration is small enough to store the kind of an operation beside a generation.
const maxGeneration = 1<<24 - 1

// wakeSlot is the slot of the loop itself, for events that end a wait.
const wakeSlot = 0
