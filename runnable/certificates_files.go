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

package runnable

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/time/rate"

	"github.com/traas-stack/altershield-operator/internal/certificates"
)

// lookAtFiles is how often the files of a certificate from elsewhere are read.
const lookAtFiles = time.Minute

// certificateFiles are from elsewhere, for example from cert-manager, which
// also writes their authority into the configurations. The leader restores
// everything else in those.
type certificateFiles struct {
	*configurations
	notAfter time.Time
	problem  string
	// injectors are the annotations of configurations, as seen while they were
	// there, by which somebody injects the authority.
	injectors map[string]map[string]string
	// logged are the configurations that cannot be made again, logged once.
	logged map[string]bool
}

func newCertificateFiles(c *configurations) *certificateFiles {
	c.writes = rate.NewLimiter(rate.Every(writesEvery), writesAtOnce)
	return &certificateFiles{configurations: c, injectors: map[string]map[string]string{}, logged: map[string]bool{}}
}

// lookEvery implements certificateSource.
func (f *certificateFiles) lookEvery() time.Duration { return lookAtFiles }

// ensure implements certificateSource. A configuration that calls a URL is that
// of an operator under development, who leads API servers to a machine of its
// own: neither it nor what is beside it is ours.
func (f *certificateFiles) ensure(ctx context.Context) error {
	f.readFiles()
	all, err := f.read(ctx)
	if err != nil {
		return err
	}
	now := f.o.Clock.Now()
	elsewhere := false
	for _, configuration := range all {
		elsewhere = elsewhere || configuration.live != nil && certificates.ByURL(configuration.live)
	}
	var errs []error
	for _, configuration := range all {
		if elsewhere {
			delete(f.missing, configuration.name)
			delete(f.injectors, configuration.name)
			continue
		}
		errs = append(errs, f.restore(ctx, configuration, now))
	}
	return errors.Join(errs...)
}

// readFiles tells when the certificate expires that the webhook server serves: the
// last that could be read with its key.
func (f *certificateFiles) readFiles() {
	pair, err := tls.LoadX509KeyPair(filepath.Join(f.o.Dir, f.o.CertName), filepath.Join(f.o.Dir, f.o.KeyName))
	if err != nil {
		if f.problem != err.Error() {
			f.problem = err.Error()
			f.o.Log.Error(err, "read the webhooks' certificate; the last one is served")
		}
		return
	}
	f.problem = ""
	if notAfter := pair.Leaf.NotAfter; !notAfter.Equal(f.notAfter) {
		f.notAfter = notAfter
		f.o.Log.Info("serving a certificate", "from", f.o.Dir, "expires", notAfter)
		if f.o.OnServe != nil {
			f.o.OnServe(notAfter)
		}
	}
}

// restore brings one configuration, on the leader, to what it is meant to be. One
// that is missing, or has no webhooks left, is made again without an authority
// where it is known who injects that. Otherwise webhooks would come of it that
// nobody can call, and one of them denies what it is not asked.
func (f *certificateFiles) restore(ctx context.Context, c configuration, now time.Time) error {
	if c.live == nil {
		if !f.overdue(c.name, now) || !f.injected(c.name) {
			return nil
		}
		object := c.want.Create(nil)
		object.SetAnnotations(f.injectors[c.name])
		return f.create(ctx, object, c.name)
	}
	delete(f.missing, c.name)
	f.injectors[c.name] = certificates.Injectors(c.live)
	if !f.leads() || certificates.Empty(c.live) && !f.injected(c.name) {
		return nil
	}
	delete(f.logged, c.name)
	next, changed, err := c.want.RestoreAround(c.live)
	if err != nil {
		return fmt.Errorf("restore %s: %w", c.name, err)
	}
	return f.update(ctx, c, next, changed)
}

// injected says whether it is known who injects the authority into a
// configuration, and logs it once when it is not.
func (f *certificateFiles) injected(name string) bool {
	if len(f.injectors[name]) > 0 {
		return true
	}
	if !f.logged[name] {
		f.logged[name] = true
		f.o.Log.Info("a webhook configuration cannot be made again, because its authority is not known: apply the manifests again, with caBundle",
			"configuration", name)
	}
	return false
}
