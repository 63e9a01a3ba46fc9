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

package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/printers"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// gather is how long changes are gathered that come together.
	gather = 300 * time.Millisecond
	// redraw is how often ages are shown anew on a terminal.
	redraw = 5 * time.Second
	// syncTimeout is how long the first watches may take to begin.
	syncTimeout = 30 * time.Second
)

// shower shows something that it reads.
type shower func(ctx context.Context, r *reader, w io.Writer, now time.Time) error

// follow shows something anew each time that anything of it changes: all that it read
// is watched. On a terminal it takes the place of what was there.
func (a *asked) follow(ctx context.Context, live client.WithWatch, show shower) error {
	first := newReader(live, live.Scheme())
	screen := &screen{w: a.c.Out, terminal: printers.IsTerminal(a.c.Out), began: a.c.Now(), now: a.c.Now, between: "\n"}
	if a.output == formatYAML {
		screen.between = "---\n"
	}
	if err := screen.draw(func(w io.Writer, now time.Time) error { return show(ctx, first, w, now) }); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watched, changed, err := a.watchAll(ctx, first.seen)
	if err != nil {
		return err
	}
	var again <-chan time.Time
	if screen.terminal {
		ticker := time.NewTicker(redraw)
		defer ticker.Stop()
		again = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again:
		case <-changed:
			if !wait(ctx, gather) {
				return nil
			}
		}
		r := newReader(&cached{Reader: watched, live: live}, live.Scheme())
		r.page = 0
		err := screen.draw(func(w io.Writer, now time.Time) error { return show(ctx, r, w, now) })
		if ctx.Err() != nil {
			return nil // it was interrupted
		}
		if err != nil {
			return err
		}
	}
}

// wait for a time; false when it is interrupted.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// screen shows a text in the place of the one before, or below it where it is another.
type screen struct {
	w        io.Writer
	terminal bool
	now      func() time.Time
	// began is the time by which texts are compared: that only ages differ is no change.
	began time.Time
	last  []byte
	// between separates texts.
	between string
}

// clearScreen leaves what has scrolled off the screen.
const clearScreen = "\x1b[H\x1b[2J"

func (s *screen) draw(show func(io.Writer, time.Time) error) error {
	compared, err := s.text(show, s.began)
	if err != nil {
		return err
	}
	if bytes.Equal(compared, s.last) && !s.terminal {
		return nil
	}
	text, err := s.text(show, s.now())
	if err != nil {
		return err
	}
	begin := ""
	if s.terminal {
		begin = clearScreen
	} else if s.last != nil {
		begin = s.between
	}
	s.last = compared
	_, err = io.WriteString(s.w, begin+string(text))
	return err
}

// text is what is shown. What was shown may be gone, and come again.
func (s *screen) text(show func(io.Writer, time.Time) error, now time.Time) ([]byte, error) {
	var text bytes.Buffer
	err := show(&text, now)
	var gone *remedied
	if s.last != nil && errors.As(err, &gone) {
		printError(&text, "", err)
		err = nil
	}
	return text.Bytes(), err
}

// cached reads from what is watched, and else from the API server: what the user must
// not read is told so again.
type cached struct {
	client.Reader
	live client.Reader
}

// Get implements client.Reader.
func (c *cached) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	err := c.Reader.Get(ctx, key, o, opts...)
	if err == nil || apierrors.IsNotFound(err) {
		return err
	}
	return c.live.Get(ctx, key, o, opts...)
}

// List implements client.Reader.
func (c *cached) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if err := c.Reader.List(ctx, list, opts...); err == nil {
		return nil
	}
	return c.live.List(ctx, list, opts...)
}

// watchAll watches what was read. What it returns reads that, and tells of changes.
func (a *asked) watchAll(ctx context.Context, seen []what) (client.Reader, <-chan struct{}, error) {
	config, err := a.c.config()
	if err != nil {
		return nil, nil, err
	}
	failed := make(chan error, 1)
	scheme := Scheme()
	objects, by, err := watchedObjects(scheme, seen)
	if err != nil {
		return nil, nil, err
	}
	watched, err := cache.New(config, cache.Options{
		Scheme: scheme, ByObject: by, ReaderFailOnMissingInformer: true,
		DefaultWatchErrorHandler: func(_ context.Context, _ *toolscache.Reflector, err error) {
			if apierrors.IsForbidden(err) {
				offer(failed, err)
			}
			// All else is tried again: a watch that expired, a server that restarts.
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("watch: %w", err)
	}
	changed := make(chan struct{}, 1)
	tell := func(any) { offer(changed, struct{}{}) }
	for _, o := range objects {
		informer, err := watched.GetInformer(ctx, o, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, nil, fmt.Errorf("watch: %w", err)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: tell, UpdateFunc: func(_, o any) { tell(o) }, DeleteFunc: tell,
		}); err != nil {
			return nil, nil, fmt.Errorf("watch: %w", err)
		}
	}
	go func() {
		if err := watched.Start(ctx); err != nil {
			offer(failed, err)
		}
	}()
	synced := make(chan bool, 1)
	limited, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	go func() { synced <- watched.WaitForCacheSync(limited) }()
	select {
	case err := <-failed:
		return nil, nil, remedy(fmt.Errorf("watch: %w", err), "your user may read this, and not watch it: leave -w out")
	case ok := <-synced:
		if !ok && ctx.Err() == nil {
			return nil, nil, remedy(errors.New("the watches did not begin in time"), "leave -w out")
		}
	}
	return watched, changed, nil
}

// offer sends what nobody may be there to take, or what was sent already.
func offer[T any](to chan T, what T) {
	select {
	case to <- what:
	default:
	}
}

// watchedObjects are the objects to be watched for what was read, and which of them.
func watchedObjects(scheme *runtime.Scheme, seen []what) ([]client.Object, map[client.Object]cache.ByObject, error) {
	var objects []client.Object
	known := map[what]bool{}
	of := map[schema.GroupVersionKind]client.Object{}
	by := map[client.Object]cache.ByObject{}
	for _, w := range seen {
		if form := (what{gvk: w.gvk, form: w.form}); !known[form] {
			known[form] = true
			o, err := emptyObject(scheme, w)
			if err != nil {
				return nil, nil, err
			}
			objects = append(objects, o)
			if of[w.gvk] == nil {
				of[w.gvk], by[o] = o, cache.ByObject{}
			}
		}
	}
	for gvk, o := range of {
		by[o] = watchedOf(gvk, seen)
	}
	return objects, by, nil
}

// watchedOf says which objects of a kind are to be watched.
func watchedOf(gvk schema.GroupVersionKind, seen []what) cache.ByObject {
	type selection struct{ name, selector string }
	namespaces := map[string]selection{}
	for _, w := range seen {
		if w.gvk != gvk {
			continue
		}
		s := selection{w.name, w.selector}
		if known, ok := namespaces[w.namespace]; ok && known != s {
			s = selection{} // read in more than one way: all of them
		}
		namespaces[w.namespace] = s
	}
	configOf := func(s selection) (c cache.Config) {
		if s.name != "" {
			c.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, s.name)
		}
		if selector, err := labels.Parse(s.selector); err == nil && s.selector != "" {
			c.LabelSelector = selector
		}
		return c
	}
	if all, ok := namespaces[""]; ok { // of the cluster, or of all namespaces
		if len(namespaces) > 1 {
			all = selection{}
		}
		c := configOf(all)
		return cache.ByObject{Label: c.LabelSelector, Field: c.FieldSelector}
	}
	by := cache.ByObject{Namespaces: map[string]cache.Config{}}
	for namespace, s := range namespaces {
		by.Namespaces[namespace] = configOf(s)
	}
	return by
}

func emptyObject(scheme *runtime.Scheme, w what) (client.Object, error) {
	switch w.form {
	case unstructural:
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(w.gvk)
		return u, nil
	case metadataOnly:
		m := &metav1.PartialObjectMetadata{}
		m.SetGroupVersionKind(w.gvk)
		return m, nil
	default:
		o, err := scheme.New(w.gvk)
		made, ok := o.(client.Object)
		if err != nil || !ok {
			return nil, fmt.Errorf("watch %s: %w", w.gvk.Kind, err)
		}
		return made, nil
	}
}
