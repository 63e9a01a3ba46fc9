/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package routers

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// objectLocks let whoever writes to one object in one after the other, each for as
// long as it has time. The zero value is ready; it is safe for concurrent use.
type objectLocks struct {
	mu sync.Mutex
	// held are those that are held or waited for.
	held map[types.UID]*objectLock
}

// objectLock has an element while it is held.
type objectLock struct {
	slot  chan struct{}
	users int
}

// lock waits for an object.
func (l *objectLocks) lock(ctx context.Context, uid types.UID) (unlock func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[types.UID]*objectLock{}
	}
	o, held := l.held[uid]
	if !held {
		o = &objectLock{slot: make(chan struct{}, 1)}
		l.held[uid] = o
	}
	o.users++
	l.mu.Unlock()
	select {
	case o.slot <- struct{}{}:
		return func() { <-o.slot; l.leave(uid, o) }, nil
	case <-ctx.Done():
		l.leave(uid, o)
		return nil, ctx.Err()
	}
}

// leave forgets the lock of an object that nobody holds or waits for.
func (l *objectLocks) leave(uid types.UID, o *objectLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o.users--; o.users == 0 {
		delete(l.held, uid)
	}
}
