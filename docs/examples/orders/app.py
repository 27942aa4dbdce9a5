"""An order service: a queue with its consumer, a producer, and alarms, which are the team's own; the rest is Sluice's.

`-c stage=dev` puts it beside another one; `-c architecture=local` is for the embedded cloud.
"""

from pathlib import Path

from aws_cdk import Acknowledgment, App, CfnOutput, RemovalPolicy, Stack, Validations
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_lambda_event_sources as event_sources
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sqs as sqs
from cdk_nag import AwsSolutionsChecks
from constructs import Construct

from sluice.constructs import Architecture, Exchange, Operations, SiteProps, SplitQueue

HERE = Path(__file__).parent
LOGS_POLICY = "arn:<AWS::Partition>:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole"


class OrdersStack(Stack):
    """All of the service."""

    def __init__(self, scope: Construct, id_: str, site: SiteProps) -> None:
        super().__init__(scope, id_)
        letters = self._queue("OrdersDeadLetters")
        orders = self._queue("Orders", dead_letters=letters)
        invoices = self._queue("Invoices", dead_letters=letters)
        shipments = self._queue("Shipments", dead_letters=letters)
        topic = sns.Topic(self, "Alarms", enforce_ssl=True)

        # Producers send to the split queue's source; what no session takes reaches `orders`, as before.
        split = SplitQueue(self, "SplitOrders", queue_id="orders", main_queue=orders, **site)
        exchange = Exchange(self, "Exchange", **site)
        exchange.declare("shop", "topic")
        exchange.bind(split, exchange="shop", key="order.placed")
        exchange.bind(invoices, exchange="shop", key="order.*", name="invoices")
        Operations(self, "Operations", watched=[split.splitting, exchange], topic=topic, **site)

        consumer = self._function("consumer", SHIPMENTS_URL=shipments.queue_url)
        consumer.add_event_source(event_sources.SqsEventSource(orders, batch_size=1))
        shipments.grant_send_messages(consumer)
        producer = self._function("producer", INGRESS_URL=exchange.ingress_queue.queue_url)
        exchange.grant_publish(producer)

        split.metric("MessagesForwarded").create_alarm(
            self,
            "NoOrders",
            threshold=1,
            evaluation_periods=12,
            comparison_operator=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            alarm_description="Nobody has ordered for an hour",
        )
        for name, value in {
            "ProducerName": producer.function_name,
            "OrdersUrl": split.source_queue.queue_url,
            "InvoicesUrl": invoices.queue_url,
            "ShipmentsUrl": shipments.queue_url,
        }.items():
            CfnOutput(self, name, value=value)

    def _queue(self, id_: str, *, dead_letters: sqs.IQueue | None = None) -> sqs.Queue:
        return sqs.Queue(
            self,
            id_,
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            dead_letter_queue=None
            if dead_letters is None
            else sqs.DeadLetterQueue(queue=dead_letters, max_receive_count=3),
        )

    def _function(self, name: str, **environment: str) -> lambda_.Function:
        function = lambda_.Function(
            self,
            name.capitalize(),
            runtime=lambda_.Runtime.PYTHON_3_13,
            handler="index.handler",
            code=lambda_.Code.from_inline((HERE / f"{name}.py").read_text()),
            # boto3 as it comes doesn't try a call of SQS again that is throttled.
            environment={"AWS_RETRY_MODE": "standard", **environment},
        )
        for rule, reason in {
            "AwsSolutions-L1": "The service moves to a new Python by itself.",
            f"AwsSolutions-IAM4[Policy::{LOGS_POLICY}]": "AWS's own policy for logs is enough here.",
        }.items():
            Validations.of(function).acknowledge(Acknowledgment(id=rule, reason=reason))
        return function


def main() -> None:
    """Write the assembly to where the CDK command line asks for it."""
    app = App()
    site: SiteProps = {
        "stage": app.node.try_get_context("stage"),
        "architecture": app.node.try_get_context("architecture") or Architecture.ARM64,
        "removal_policy": RemovalPolicy.DESTROY,
        "log_retention_days": 7,
    }
    OrdersStack(app, "Orders", site)
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    app.synth()


if __name__ == "__main__":
    main()
