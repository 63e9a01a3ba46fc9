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

package certificates

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// files is a certificate in files. Another program, for example cert-manager, makes it and injects its authority into the
// configurations. The leader restores the other fields of the configurations.
type files struct {
	*configurations
	notAfter time.Time
	// injectors are the last annotations of each configuration that tell another program to inject the authority.
	injectors map[string]map[string]string
}

// lookEvery implements source.
func (f *files) lookEvery() time.Duration { return f.o.LookEvery }

// ensure implements source. A configuration that calls a URL belongs to an operator under development, which runs outside
// of the cluster. Then only the configurations of declared kinds are restored.
func (f *files) ensure(ctx context.Context) error {
	f.readFiles()
	all, err := f.read(ctx)
	if err != nil {
		return err
	}
	now := f.o.Clock.Now()
	outside := false
	for _, configuration := range all {
		outside = outside || configuration.live != nil && ByURL(configuration.live)
	}
	var errs []error
	for _, configuration := range all {
		if outside && !configuration.declared {
			f.found(configuration.name)
			delete(f.injectors, configuration.name)
			continue
		}
		errs = append(errs, f.restore(ctx, configuration, now))
	}
	return errors.Join(errs...)
}

// readFiles reports the expiry of the certificate that the webhook server serves: the last one that could be read with its
// key.
func (f *files) readFiles() {
	pair, err := tls.LoadX509KeyPair(filepath.Join(f.o.Dir, f.o.CertName), filepath.Join(f.o.Dir, f.o.KeyName))
	if f.isNew("files", err) {
		f.o.Log.Error(err, "read the webhooks' certificate; the last one is served")
	}
	if err != nil {
		return
	}
	if notAfter := pair.Leaf.NotAfter; !notAfter.Equal(f.notAfter) {
		f.notAfter = notAfter
		f.o.Log.Info("serving a certificate", "from", f.o.Dir, "expires", notAfter)
		if f.o.OnServe != nil {
			f.o.OnServe(notAfter)
		}
	}
}

// restore restores one configuration, on the leader. A configuration that is missing or has no webhooks is restored without
// an authority, and only if another program is known to inject it. Otherwise API servers could not call the webhooks, and a
// webhook with the failure policy Fail would deny its requests.
func (f *files) restore(ctx context.Context, c configuration, now time.Time) error {
	known := len(c.authority) > 0
	if c.live == nil {
		if !f.overdue(c, now) || !known && !f.injected(c.name) {
			return nil
		}
		object := c.want.Create(c.authority)
		object.SetAnnotations(f.injectors[c.name])
		return f.create(ctx, object, c.name)
	}
	f.found(c.name)
	f.injectors[c.name] = Injectors(c.live)
	if !f.restores(c) || Empty(c.live) && !Empty(c.want.template) && !known && !f.injected(c.name) {
		return nil
	}
	f.isNew("injector of "+c.name, nil)
	var bundle []byte
	if Empty(c.live) {
		bundle = c.authority
	}
	next, err := c.want.Restore(c.live, bundle)
	if err != nil {
		return fmt.Errorf("restore %s: %w", c.name, err)
	}
	return f.update(ctx, c, next)
}

var errNotInjected = errors.New("its authority is not known")

// injected reports whether a program is known to inject the authority into a configuration, and logs once if none is.
func (f *files) injected(name string) bool {
	if len(f.injectors[name]) > 0 {
		return true
	}
	if f.isNew("injector of "+name, errNotInjected) {
		f.o.Log.Info("a webhook configuration cannot be recreated, because its authority is not known: "+
			"apply the manifests again, with caBundle", "configuration", name)
	}
	return false
}
