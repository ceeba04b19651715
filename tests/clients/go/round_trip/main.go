// round_trip LOGIN TOPIC GROUP VALUE: produces a record and consumes it in a group, with franz-go.
// LOGIN: a file of `Login`. Prints "ok", or the name of the first error. Without VALUE it only consumes.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type login struct {
	Bootstrap, Mechanism, CA, Certificate, User, Password string
	TokenEndpoint                                         string `json:"token_endpoint"`
	IsToken                                               bool   `json:"is_token"`
}

func main() {
	topic, group, value := os.Args[2], os.Args[3], os.Args[4]
	text, err := os.ReadFile(os.Args[1])
	check(err)
	var with login
	check(json.Unmarshal(text, &with))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if value != "" {
		producer, err := kgo.NewClient(with.options()...)
		check(err)
		stopAt(producer.Ping(ctx)) // it does not retry a refused login, as a produce does
		stopAt(producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr())
	}
	reading := append(with.options(), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	consumer, err := kgo.NewClient(reading...)
	check(err)
	for {
		fetched := consumer.PollFetches(ctx)
		stopAt(fetched.Err())
		for _, record := range fetched.Records() {
			if string(record.Value) == value {
				consumer.Close()
				fmt.Println("ok")
				return
			}
		}
	}
}

func (with login) options() []kgo.Opt {
	roots := x509.NewCertPool()
	pem, err := os.ReadFile(with.CA)
	check(err)
	roots.AppendCertsFromPEM(pem)
	settings := &tls.Config{RootCAs: roots}
	options := []kgo.Opt{kgo.SeedBrokers(with.Bootstrap), kgo.DialTLSConfig(settings)}
	switch with.Mechanism {
	case "OAUTHBEARER":
		return append(options, kgo.SASL(oauth.Oauth(with.token)))
	case "SCRAM-SHA-512":
		auth := scram.Auth{User: with.User, Pass: with.Password, IsToken: with.IsToken}
		return append(options, kgo.SASL(auth.AsSha512Mechanism()))
	}
	pair, err := tls.LoadX509KeyPair(with.Certificate, with.Certificate)
	check(err)
	settings.Certificates = []tls.Certificate{pair}
	return options
}

func (with login) token(context.Context) (oauth.Auth, error) {
	response, err := http.PostForm(with.TokenEndpoint, url.Values{"grant_type": {"client_credentials"}})
	if err != nil {
		return oauth.Auth{}, err
	}
	defer response.Body.Close()
	var answer struct {
		Token string `json:"access_token"`
	}
	err = json.NewDecoder(response.Body).Decode(&answer)
	return oauth.Auth{Token: answer.Token}, err
}

func stopAt(err error) {
	var code *kerr.Error
	if errors.As(err, &code) {
		fmt.Println(code.Message)
		os.Exit(0)
	}
	check(err)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
