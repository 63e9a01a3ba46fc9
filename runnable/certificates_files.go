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

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/traas-stack/altershield-operator/internal/certificates"
)

// lookAtFiles is how often the files of a certificate from elsewhere are read.
const lookAtFiles = time.Minute

// files is what is known of a certificate from elsewhere, and of the
// configurations that its authority is in.
type files struct {
	notAfter time.Time
	problem  string
	// injectors are the annotations of configurations, as seen while they were
	// there, by which somebody injects the authority.
	injectors map[string]map[string]string
	// told are configurations that cannot be made again.
	told map[string]bool
}

// ensureAround is ensure for a certificate from elsewhere. Who made it, somebody
// or cert-manager, writes its authority into the configurations; the leader
// restores what is around it. A configuration that calls a URL is that of an
// operator under development, who leads API servers to a machine of its own:
// neither it nor what is beside it is ours.
func (c *Certificates) ensureAround(ctx context.Context) error {
	c.readFiles()
	configurations, err := c.readConfigurations(ctx)
	if err != nil {
		return err
	}
	now := c.o.Clock.Now()
	elsewhere := false
	for _, live := range configurations {
		elsewhere = elsewhere || live != nil && certificates.ByURL(live)
	}
	var errs []error
	for i, want := range c.configurations {
		errs = append(errs, c.applyAround(ctx, want, configurations[i], elsewhere, now))
	}
	return errors.Join(errs...)
}

// readFiles tells when the certificate expires that the webhook server serves: the
// last that could be read with its key.
func (c *Certificates) readFiles() {
	pair, err := tls.LoadX509KeyPair(filepath.Join(c.o.Dir, c.o.CertName), filepath.Join(c.o.Dir, c.o.KeyName))
	if err != nil {
		if c.files.problem != err.Error() {
			c.files.problem = err.Error()
			c.o.Log.Error(err, "read the webhooks' certificate; the last one is served")
		}
		return
	}
	c.files.problem = ""
	if notAfter := pair.Leaf.NotAfter; !notAfter.Equal(c.files.notAfter) {
		c.files.notAfter = notAfter
		c.o.Log.Info("serving a certificate", "from", c.o.Dir, "expires", notAfter)
		if c.o.OnServe != nil {
			c.o.OnServe(notAfter)
		}
	}
}

// applyAround restores one configuration, on the leader. One that is missing, or
// has no webhooks left, is made again without an authority where it is known who
// injects that. Otherwise webhooks would come of it that nobody can call, and one
// of them denies what it is not asked.
func (c *Certificates) applyAround(ctx context.Context, want certificates.Configuration, live *unstructured.Unstructured, elsewhere bool, now time.Time) error {
	name := nameOf(want)
	switch {
	case elsewhere:
		delete(c.missing, name)
		delete(c.files.injectors, name)
		return nil
	case live == nil:
		if !c.overdue(name, now) || !c.injected(name) {
			return nil
		}
		object := want.Create(nil)
		object.SetAnnotations(c.files.injectors[name])
		return c.create(ctx, object, name)
	}
	delete(c.missing, name)
	c.files.injectors[name] = certificates.Injectors(live)
	if !c.leads() || certificates.Empty(live) && !c.injected(name) {
		return nil
	}
	delete(c.files.told, name)
	next, changed, err := want.RestoreAround(live)
	if err != nil {
		return fmt.Errorf("restore %s: %w", name, err)
	}
	return c.update(ctx, live, next, changed, name)
}

// injected says whether it is known who injects the authority into a
// configuration, and tells when it is not.
func (c *Certificates) injected(name string) bool {
	if len(c.files.injectors[name]) > 0 {
		return true
	}
	if !c.files.told[name] {
		c.files.told[name] = true
		c.o.Log.Info("a webhook configuration cannot be made again, because its authority is not known: apply the manifests again, with caBundle", "configuration", name)
	}
	return false
}
