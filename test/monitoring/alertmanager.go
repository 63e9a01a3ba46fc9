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

package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// AlertmanagerOptions are the options of an Alertmanager. Programs is required.
type AlertmanagerOptions struct {
	// Programs is the directory of the programs: see the function Programs.
	Programs string
	// Host is the address to listen at; empty is 127.0.0.1.
	Host   string
	Access Access
}

// Alertmanager is an Alertmanager that runs until Close. It sends no notifications.
type Alertmanager struct{ *Server }

// Alert is an alert that an Alertmanager has, with the names of its API.
type Alert struct {
	Labels, Annotations map[string]string
	StartsAt, EndsAt    time.Time
	GeneratorURL        string
	Status              struct{ State string }
}

// StartAlertmanager starts an Alertmanager without alerts, and returns when it is ready.
func StartAlertmanager(ctx context.Context, o AlertmanagerOptions) (*Alertmanager, error) {
	s, err := newServer("alertmanager", o.Programs, o.Host, o.Access)
	if err != nil {
		return nil, err
	}
	s.args = func() ([]string, error) {
		return []string{
				"--config.file=alertmanager.yml",
				"--storage.path=data",
				"--web.config.file=web.yml",
				"--web.listen-address=" + s.Address(),
				// Alone: it listens to no others.
				"--cluster.listen-address=",
			}, s.writeYAML("alertmanager.yml", map[string]any{
				"route": map[string]any{"receiver": "none"}, "receivers": []any{map[string]any{"name": "none"}},
			})
	}
	if err := s.begin(ctx, 1); err != nil {
		return nil, err
	}
	return &Alertmanager{s}, nil
}

// Alerts returns the alerts that have not ended.
func (a *Alertmanager) Alerts(ctx context.Context) ([]Alert, error) {
	body, err := a.get(ctx, "/api/v2/alerts")
	if err != nil {
		return nil, err
	}
	var alerts []Alert
	if err := json.Unmarshal(body, &alerts); err != nil {
		return nil, fmt.Errorf("alerts: %w", err)
	}
	return alerts, nil
}
