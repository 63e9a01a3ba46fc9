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

package verify

import "sync"

// tries bound what is at work at once, in all and of a namespace, for those that do not
// wait but come again: a worker is not kept from other objects.
type tries struct {
	all, own int

	mu   sync.Mutex
	of   map[string]int
	used int
}

func newTries(all, own int) *tries {
	return &tries{all: all, own: own, of: map[string]int{}}
}

// try takes a place of a namespace, if there is one.
func (t *tries) try(namespace string) (done func(), ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used >= t.all || t.of[namespace] >= t.own {
		return nil, false
	}
	t.used++
	t.of[namespace]++
	return func() { t.leave(namespace) }, true
}

func (t *tries) leave(namespace string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used--
	if t.of[namespace]--; t.of[namespace] == 0 {
		delete(t.of, namespace)
	}
}
